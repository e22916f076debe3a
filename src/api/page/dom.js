// dom.js - making elements. Text goes in as text, never as markup: the page's policy (trusted-types 'none') has the
// browser refuse innerHTML and its like.

const $ = id => document.getElementById(id);

/** el('p', {class: 'note', onclick}, 'text', child...): a property where the element has one, else an attribute. */
function el(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) {
    if (v === undefined || v === null || v === false) continue;
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k === 'class') { if (v) e.className = v; }
    else if (k in e) e[k] = v;
    else e.setAttribute(k, v);
  }
  for (const c of children.flat()) if (c !== undefined && c !== null && c !== false) e.append(c);
  return e;
}

function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  svg.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', '#i-' + name);
  svg.append(use);
  return svg;
}

const iconButton = (name, label, onclick) =>
  el('button', {type: 'button', class: 'icon small', title: label, 'aria-label': label, onclick}, icon(name));

/** Copies, and says so on the button for a moment. Pages of plain http have no clipboard: select and copy is left. */
async function copyText(text, button, original) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el('textarea', {class: 'hidden', value: text});
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
  }
  say(done ? 'Copied' : 'The browser does not let this page copy');
  if (!done) return;
  button.replaceChildren(...(original.text ? [icon('check'), 'Copied'] : [icon('check')]));
  const before = original.text ? [icon(original.icon), original.text] : [icon(original.icon)];
  setTimeout(() => button.replaceChildren(...before), 1500);
}

/** For screen readers, which get whole sentences and not the stream. */
function say(text) { $('status').textContent = text; }

/** A sentence above the conversation, until the next or until it is dismissed; kind is fault or news. */
function notice(text, action, kind = 'fault') {
  const box = $('notice');
  box.className = kind;
  box.hidden = !text;
  if (!text) return box.replaceChildren();
  box.replaceChildren(el('span', {}, text),
    action ? el('button', {type: 'button', onclick: action.run}, action.label) : '',
    el('button', {type: 'button', onclick: () => notice('')}, 'Dismiss'));
}

/** As tall as what is in it. */
function fitHeight(area) {
  area.style.height = 'auto';
  area.style.height = area.scrollHeight + 2 + 'px';
}

const seconds = ms => ms < 10 ? ms.toFixed(1) + ' ms' : ms < 1000 ? Math.round(ms) + ' ms' :
    (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + ' s';
const rate = r => r < 10 ? r.toFixed(2) : r < 100 ? r.toFixed(1) : Math.round(r).toLocaleString('en');
