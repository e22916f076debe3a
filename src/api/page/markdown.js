// markdown.js - a model's text as elements. What comes in is hostile: everything is built of text nodes and a fixed
// set of elements, links go to http, https and mailto alone, nothing is loaded (an image is shown as a link, since
// fetching it would tell its server what is in the URL), HTML is shown as the text it is.
//
// Text grows at its end, so a renderer keeps the elements of the blocks that did not change: a frame costs what is new.
// Every pattern is anchored and every search remembers where it ended: time is linear in the text, depth is bounded.

const MAX_DEPTH = 8;      // of quotes and lists in each other
const MAX_EMPHASIS = 24;  // open at once
const MAX_URL = 2048;
const MAX_FORMULA_LINES = 100;
const MAX_INLINE_FORMULA = 2000; // characters

/** The URL if it is one that a click may open, else null. */
function safeUrl(text) {
  if (text.length > MAX_URL || /[\u0000-\u0020]/.test(text)) return null;
  let url;
  try { url = new URL(text); } catch { return null; }
  return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
}

// ---- blocks: lines to a list of {type, src, ...} ------------------------------------------------------------------

const indentOf = line => line.length - line.trimStart().length;
const isBlank = line => line.trim() === '';
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;

function cellsOf(line) {
  const cells = [];
  let cell = '', code = false;
  const text = line.trim().replace(/^\|/, '');
  for (let i = 0; i < text.length; i++) {
    if (text[i] === '\\' && text[i + 1] === '|') { cell += '|'; i++; continue; }
    if (text[i] === '`') code = !code;
    if (text[i] === '|' && !code) { cells.push(cell.trim()); cell = ''; continue; }
    cell += text[i];
  }
  if (cell.trim() || !cells.length) cells.push(cell.trim());
  return cells;
}

function beginsTable(lines, i) {
  if (!lines[i].includes('|') || i + 1 >= lines.length || !/^[ \t|:-]+$/.test(lines[i + 1]) ||
      !lines[i + 1].includes('-')) return false;
  const marks = cellsOf(lines[i + 1]);
  return marks.every(m => /^:?-+:?$/.test(m)) && marks.length === cellsOf(lines[i]).length;
}

/** A formula on lines of its own: {type, end, text}, or null. TeX has no blank line in one. */
function formulaAt(lines, i) {
  const first = lines[i].trim(), m = /^(?:\$\$|\\\[|\\begin\{([a-z]+\*?)\})/.exec(first);
  if (!m || (m[1] && !TABLES.test(m[1]))) return null;
  const close = m[1] ? `\\end{${m[1]}}` : m[0] === '$$' ? '$$' : '\\]';
  let text = m[1] ? m[0] : '', line = first.slice(m[0].length);
  for (let end = i; ; line = lines[end].trim()) {
    const at = line.indexOf(close);
    end++;
    if (at >= 0) {
      const rest = line.slice(at + close.length);
      if (!/^[.,;:]?$/.test(rest)) return null;
      return {type: 'formula', end, text: text + line.slice(0, at) + (m[1] ? close : '') + rest};
    }
    text += line + '\n';
    if (end >= lines.length || end - i > MAX_FORMULA_LINES || isBlank(lines[end])) return null;
  }
}

const interrupts = (lines, i) => formulaAt(lines, i) !== null ||
  FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i]) ||
  (ITEM.test(lines[i]) && /^ {0,3}([-*+]|1[.)])[ \t]+\S/.test(lines[i])) || beginsTable(lines, i);

function takeFence(lines, i) {
  const [, mark, info] = FENCE.exec(lines[i]), indent = indentOf(lines[i]), body = [];
  let end = i + 1, closed = false;
  for (; end < lines.length && !closed; end++) {
    const text = lines[end].trim();
    closed = indentOf(lines[end]) < 4 && text.length >= mark.length && text === mark[0].repeat(text.length);
    if (!closed) body.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
  }
  return {type: 'code', end, closed, lang: info.trim().split(/\s/, 1)[0], text: body.join('\n')};
}

function takeHeading(lines, i) {
  const level = HEADING.exec(lines[i])[1].length;
  let text = lines[i].trim().slice(level).trim(), n = text.length;
  while (n > 0 && text[n - 1] === '#') n--;
  if (n < text.length && (n === 0 || text[n - 1] === ' ')) text = text.slice(0, n).trim();
  return {type: 'heading', end: i + 1, level, text};
}

function takeQuote(lines, i, depth) {
  const inner = [];
  let end = i;
  for (; end < lines.length && QUOTE.test(lines[end]); end++) inner.push(lines[end].replace(QUOTE, ''));
  return {type: 'quote', end, blocks: blocksOf(inner, depth + 1)};
}

function takeTable(lines, i) {
  const align = cellsOf(lines[i + 1]).map(m => m.endsWith(':') ? (m.startsWith(':') ? 'center' : 'right') : '');
  const rows = [];
  let end = i + 2;
  for (; end < lines.length && lines[end].includes('|') && !isBlank(lines[end]); end++) rows.push(cellsOf(lines[end]));
  return {type: 'table', end, align, head: cellsOf(lines[i]), rows};
}

/** One list: items of one kind of marker. Lines belong to an item when they are indented (two columns do, since
 *  models count them differently) or go on with its paragraph. */
function takeList(lines, i, depth) {
  const first = ITEM.exec(lines[i])[2], ordered = first.length > 1, kind = first.at(-1);
  const items = [];
  let end = i, loose = false;
  while (end < lines.length) {
    const m = ITEM.exec(lines[end]);
    if (!m || m[2].at(-1) !== kind || (m[2].length > 1) !== ordered || RULE.test(lines[end])) break;
    const offset = m[1].length + m[2].length + (m[3].length > 4 ? 1 : m[3].length || 1),
        inner = [lines[end].slice(m[0].length)];
    let blank = false;
    for (end++; end < lines.length; end++) {
      const line = lines[end], indent = indentOf(line);
      if (isBlank(line)) { inner.push(''); blank = true; continue; }
      if (indent >= Math.min(offset, 2)) { inner.push(line.slice(Math.min(indent, offset))); blank = false; continue; }
      if (blank || ITEM.test(line) || interrupts(lines, end)) break;
      inner.push(line);
    }
    if (blank && end < lines.length && ITEM.test(lines[end])) loose = true;
    while (inner.length && isBlank(inner.at(-1))) inner.pop();
    const task = /^\[([ xX])\] /.exec(inner[0] || '');
    if (task) inner[0] = inner[0].slice(4);
    const blocks = blocksOf(inner, depth + 1);
    loose ||= blocks.filter(b => b.type === 'text').length > 1;
    items.push({task: task && task[1] !== ' ', isTask: !!task, blocks});
  }
  return {type: 'list', end, ordered, start: ordered ? parseInt(first, 10) : 1, loose, items};
}

function takeText(lines, i) {
  let end = i + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end)) end++;
  return {type: 'text', end, text: lines.slice(i, end).join('\n').trim()};
}

function blocksOf(lines, depth = 0) {
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) { i++; continue; }
    const line = lines[i], deep = depth >= MAX_DEPTH;
    const b = FENCE.test(line) ? takeFence(lines, i) : formulaAt(lines, i) ??
      (HEADING.test(line) ? takeHeading(lines, i) :
      RULE.test(line) ? {type: 'rule', end: i + 1} : !deep && QUOTE.test(line) ? takeQuote(lines, i, depth) :
       !deep && ITEM.test(line) ? takeList(lines, i, depth) :
       beginsTable(lines, i) ? takeTable(lines, i) : takeText(lines, i));
    if (depth === 0) b.src = lines.slice(i, b.end).join('\n');
    blocks.push(b);
    i = b.end;
  }
  return blocks;
}

// ---- inline: a text to nodes --------------------------------------------------------------------------------------

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;

/** Where each '[' closes, and where runs of n backticks begin: found once, so that no bracket searches again. */
function scanInline(s) {
  const closes = new Map(), open = [], ticks = new Map();
  for (let i = 0; i < s.length; i++) {
    if (s[i] === '`') {
      let n = 1;
      while (s[i + n] === '`') n++;
      if (!ticks.has(n)) ticks.set(n, {at: [], next: 0});
      ticks.get(n).at.push(i);
      i += n - 1;
    } else if (s[i] === '\\') i++;
    else if (s[i] === '[') open.push(i);
    else if (s[i] === ']' && open.length) closes.set(open.pop(), i);
  }
  return {closes, ticks};
}

/** "(url)" or "(url "title")" at i: {url, end}, or null. */
function targetAt(s, i) {
  if (s[i] !== '(') return null;
  let depth = 0, end = i;
  for (; end < s.length && end - i < MAX_URL; end++) {
    if (s[end] === '\\') end++;
    else if (s[end] === '\n') return null;
    else if (s[end] === '(') depth++;
    else if (s[end] === ')' && --depth === 0) {
      let url = s.slice(i + 1, end).trim();
      const title = url.search(/[ \t]["'(]/);
      if (title > 0) url = url.slice(0, title);
      if (url.startsWith('<') && url.endsWith('>')) url = url.slice(1, -1);
      return {url, end: end + 1};
    }
  }
  return null;
}

/** A URL in running text, without the punctuation that ends the sentence. */
function bareUrlAt(s, i) {
  const m = /^https?:\/\/[^\s<>"'`|\\^{}]+/.exec(s.slice(i, i + MAX_URL));
  if (!m) return null;
  let n = m[0].length, opens = 0, closes = 0;
  for (const c of m[0]) { opens += c === '('; closes += c === ')'; }
  for (; n > 0; n--) {
    const c = m[0][n - 1];
    if (c === ')' && closes > opens) closes--;
    else if (!'.,;:!?*_~]'.includes(c)) break;
  }
  return m[0].slice(0, n);
}

function linkTo(url, ...children) {
  const href = safeUrl(url);
  return href ? el('a', {href, title: href, target: '_blank', rel: 'noopener noreferrer nofollow',
      referrerPolicy: 'no-referrer'}, ...children)
    : el('span', {title: 'not a link that this page opens'}, ...children);
}

/** A formula in running text at i: {text, display, end}, or null. A dollar is one of money where a blank follows it or
 *  stands before the next one, or a digit behind that. */
function inlineFormulaAt(s, i) {
  const open = s[i] === '\\' || s[i + 1] === '$' ? s.slice(i, i + 2) : '$';
  const close = {'\\(': '\\)', '\\[': '\\]', '$$': '$$', $: '$'}[open], from = i + open.length;
  if (!close) return null;
  if (open === '$' && (/^(\s|$)/.test(s.slice(from, from + 1)) || (i > 0 && WORD.test(s[i - 1])))) return null;
  const near = s.slice(from, from + MAX_INLINE_FORMULA);
  let at = near.indexOf(close);
  while (close === '$' && at > 0 && near[at - 1] === '\\') at = near.indexOf(close, at + 1);
  if (at <= 0 || !near.slice(0, at).trim()) return null;
  if (open === '$' && (/\s$|\n/.test(near.slice(0, at)) || /^\d/.test(near.slice(at + 1, at + 2)))) return null;
  return {text: near.slice(0, at), display: open === '$$' || open === '\\[', end: from + at + close.length};
}

/** How often the character at i comes from there on. */
function runAt(s, i) {
  let n = 1;
  while (s[i + n] === s[i]) n++;
  return n;
}

/** Code that begins with n backticks at i: {text, end}, or null where no run of as many ends it. */
function codeAt(s, i, n, ticks) {
  const runs = ticks.get(n) || {at: [], next: 0};
  while (runs.at[runs.next] < i + n) runs.next++;
  const end = runs.at[runs.next];
  if (end === undefined) return null;
  const code = s.slice(i + n, end).replaceAll('\n', ' ');
  return {text: /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code, end: end + n};
}

/** The n marks of emphasis at i: whether they may open one, and whether they may end one. */
function emphasisAt(s, i) {
  const n = runAt(s, i);
  const before = s[i - 1] || ' ', after = s[i + n] || ' ';
  const left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  return {n, opens: left && (s[i] !== '_' || !right || PUNCTUATION.test(before)),
    ends: right && (s[i] !== '_' || !left || PUNCTUATION.test(after))};
}

/** Ends the inner `used` marks of a frame; the outer ones stay open. */
function wrapInner(f, used) {
  const e = document.createElement(used === 2 ? 'strong' : 'em');
  e.append(f.node);
  f.node.append(e);
  f.n -= used;
}

/** Appends what the text says to parent. inLink: links do not nest. */
function inline(parent, s, inLink = false) {
  const {closes, ticks} = scanInline(s);
  const frames = [{node: parent}], openOf = {'*': 0, '_': 0, '~': 0};
  let text = '';
  const put = node => frames.at(-1).node.append(node);
  const flush = () => { if (text) put(text); text = ''; };
  /** Closes the top frame: as an element, or as the marks and what followed them. */
  const close = tag => {
    const f = frames.pop();
    openOf[f.mark]--;
    if (tag) { const e = document.createElement(tag); e.append(f.node); put(e); return; }
    put(f.mark.repeat(f.n));
    put(f.node);
  };
  for (let i = 0; i < s.length;) {
    const c = s[i], formula = c === '$' || c === '\\' ? inlineFormulaAt(s, i) : null;
    if (formula) {
      flush();
      put(formulaElement(formula.text, formula.display));
      i = formula.end;
    } else if (c === '\\' && i + 1 < s.length && (PUNCTUATION.test(s[i + 1]) || s[i + 1] === '\n')) {
      if (s[i + 1] === '\n') { flush(); put(el('br')); } else text += s[i + 1];
      i += 2;
    } else if (c === '\n') {
      text = text.trimEnd();
      flush();
      put(el('br'));
      for (i++; s[i] === ' '; i++);
    } else if (c === '`') {
      const n = runAt(s, i), code = codeAt(s, i, n, ticks);
      if (!code) { text += s.slice(i, i + n); i += n; continue; }
      flush();
      put(el('code', {}, code.text));
      i = code.end;
    } else if (c === '[' || (c === '!' && s[i + 1] === '[')) {
      const at = c === '!' ? i + 1 : i, end = closes.get(at),
          to = end === undefined || inLink ? null : targetAt(s, end + 1);
      if (!to) { text += c; i++; continue; }
      flush();
      const label = document.createDocumentFragment();
      if (c === '!') label.append('🖼 ' + (s.slice(at + 1, end) || to.url));
      else inline(label, s.slice(at + 1, end), true);
      put(linkTo(to.url, label));
      i = to.end;
    } else if (c === '<' && !inLink) {
      const m = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(s.slice(i, i + MAX_URL));
      if (!m) { text += c; i++; continue; }
      flush();
      put(linkTo(m[1], m[1]));
      i += m[0].length;
    } else if (c === 'h' && !inLink && s.startsWith('http', i) && !(i > 0 && WORD.test(s[i - 1]))) {
      const url = bareUrlAt(s, i);
      if (!url) { text += c; i++; continue; }
      flush();
      put(linkTo(url, url));
      i += url.length;
    } else if (c === '*' || c === '_' || c === '~') {
      let {n, opens, ends} = emphasisAt(s, i);
      i += n;
      if (n > 3 || (c === '~' && n !== 2)) { text += c.repeat(n); continue; }
      flush();
      while (ends && n > 0 && openOf[c] > 0) {
        while (frames.at(-1).mark !== c) close(null);
        const f = frames.at(-1), used = c === '~' ? 2 : Math.min(f.n, n, 2);
        if (f.n > used) wrapInner(f, used);
        else close(c === '~' ? 'del' : used === 2 ? 'strong' : 'em');
        n -= used;
      }
      if (n > 0 && opens && frames.length < MAX_EMPHASIS) {
        frames.push({node: document.createDocumentFragment(), mark: c, n});
        openOf[c]++;
      } else text += c.repeat(n);
    } else {
      text += c;
      i++;
    }
  }
  flush();
  while (frames.length > 1) close(null);
}

// ---- blocks to elements -------------------------------------------------------------------------------------------

function codeElement(b) {
  const code = el('code', {}), copy = () => copyText(code.textContent, button, {icon: 'copy', text: 'Copy'});
  const button = el('button', {type: 'button', onclick: copy}, icon('copy'), 'Copy');
  if (b.closed) highlight(code, b.text, b.lang); else code.textContent = b.text;
  return el('div', {class: 'code', dir: 'ltr'}, el('div', {class: 'code-head'},
      el('span', {}, b.lang.slice(0, 40) || 'text'), button), el('pre', {tabIndex: 0}, code));
}

function tableElement(b) {
  const cell = (tag, a, text) => { const e = el(tag, {class: a}); inline(e, text || ''); return e; };
  const row = (tag, cells) => el('tr', {}, b.align.map((a, k) => cell(tag, a, cells[k])));
  return el('div', {class: 'table', tabIndex: 0}, el('table', {}, el('thead', {}, row('th', b.head)),
      el('tbody', {}, b.rows.map(r => row('td', r)))));
}

function listElement(b) {
  const list = el(b.ordered ? 'ol' : 'ul', b.ordered && b.start !== 1 ? {start: b.start} : {});
  for (const item of b.items) {
    const box = item.isTask && el('input', {type: 'checkbox', checked: item.task, disabled: true});
    const li = el('li', {class: item.isTask && 'task'}, box, item.isTask && ' ');
    item.blocks.forEach(child => {
      if (child.type === 'text' && !b.loose) inline(li, child.text);
      else li.append(blockElement(child));
    });
    list.append(li);
  }
  return list;
}

/** Left to right or right to left, by its text. Set when that is whole: a browser looks through all of it after each
 *  change. */
function withDirection(e) { e.dir = 'auto'; return e; }

function blockElement(b) {
  if (b.type === 'code') return codeElement(b);
  if (b.type === 'rule') return el('hr');
  if (b.type === 'formula') return el('div', {class: 'formula', dir: 'ltr', tabIndex: 0}, formulaElement(b.text, true));
  if (b.type === 'table') return tableElement(b);
  if (b.type === 'list') return listElement(b);
  if (b.type === 'quote') return withDirection(el('blockquote', {}, b.blocks.map(blockElement)));
  const e = el(b.type === 'heading' ? 'h' + Math.min(6, b.level + 2) : 'p',
      {class: b.type === 'heading' && 'level-' + b.level});
  inline(e, b.text);
  return withDirection(e);
}

/** Keeps an element in step with a text that grows. */
class MarkdownView {
  constructor(root) { this.root = root; this.kept = []; }
  show(text) {
    try { this.update(text); } catch { this.root.textContent = text; this.kept = []; } // better plain than nothing
  }
  update(text) {
    const lines = text.replaceAll('\r\n', '\n').split('\n');
    const blocks = blocksOf(lines.map(l => l.replace(/^\t+/, t => '    '.repeat(t.length))));
    blocks.forEach((b, i) => {
      const old = this.kept[i];
      if (old && old.src === b.src && old.type === b.type) return;
      if (old && old.type === 'code' && b.type === 'code' && !old.closed && !b.closed && old.lang === b.lang) {
        old.element.querySelector('code').textContent = b.text;
        old.src = b.src;
        return;
      }
      const element = blockElement(b);
      if (old) old.element.replaceWith(element); else this.root.append(element);
      this.kept[i] = {...b, element};
    });
    for (const gone of this.kept.splice(blocks.length)) gone.element.remove();
  }
}
