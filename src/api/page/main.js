// main.js - what is around: theme, settings, models, keys, and which view the address asks for.
//
//   #new  an empty conversation      #race  the race      #ID  that conversation

let view = 'chat';

// ---- theme --------------------------------------------------------------------------------------------------------

const THEMES = {auto: ['auto', 'as the system has them'], light: ['sun', 'light'], dark: ['moon', 'dark']};

function setTheme(name) {
  const theme = THEMES[name] ? name : 'auto';
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $('theme').replaceChildren(icon(THEMES[theme][0]));
  $('theme').title = 'Colours: ' + THEMES[theme][1];
  $('theme').setAttribute('aria-label', 'Colours: ' + THEMES[theme][1]);
  keep('gyre.theme', theme);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(readJson(localStorage, 'gyre.theme', 'auto')) + 1) % names.length]);
}

// ---- models -------------------------------------------------------------------------------------------------------

function askForKey() {
  notice('This server asks for an API key.',
      {label: 'Enter it', run: () => { openSettings(); $('set-key').focus(); }}, 'news');
}

let modelsAsked; // an answer that comes after another question is old
let modelsFault = false; // the notice is of this; another one stays

async function findModels() {
  const select = $('model'), asked = modelsAsked = {};
  try {
    const names = await listModels(server()), wanted = readJson(localStorage, 'gyre.model', '');
    if (asked !== modelsAsked) return;
    select.replaceChildren(...names.map(n => el('option', {value: n, selected: n === wanted}, n)));
    select.disabled = names.length === 0;
    $('empty-model').textContent = names.length ?
        `${select.value} at ${new URL(baseOf(settings.base)).host}` : 'The server has no model.';
    if (modelsFault) notice('');
    modelsFault = false;
  } catch (e) {
    if (asked !== modelsAsked) return;
    modelsFault = true;
    select.replaceChildren(el('option', {value: ''}, 'no model'));
    select.disabled = true;
    $('empty-model').textContent = '';
    if (e.status === 401) askForKey(); else notice(e.message, {label: 'Try again', run: findModels});
  }
}

// ---- settings -----------------------------------------------------------------------------------------------------

function buildSettings() {
  $('sampling').replaceChildren(...SAMPLING.map(([name, label, hint, bounds]) =>
    el('label', {}, label, el('input',
        {id: 'set-' + name, type: 'number', inputMode: 'decimal', placeholder: 'default', title: hint, ...bounds}))));
}

function tellStorage(said = '') {
  const n = conversations.size;
  const kept = n ? `${n} conversation${n > 1 ? 's are' : ' is'} kept in this browser.` : 'None is kept yet.';
  $('storage-note').textContent = said + ' ' + kept;
  $('export').disabled = $('clear').disabled = n === 0;
}

function openSettings() {
  notice('');
  $('set-base').value = settings.base;
  $('set-key').value = readKey();
  $('set-remember').checked = localStorage.getItem('gyre.key') !== null;
  $('set-system').value = settings.system;
  for (const name of ['stop', 'tools', 'schema']) $('set-' + name).value = settings[name];
  for (const [name] of SAMPLING) $('set-' + name).value = settings.sampling[name] ?? '';
  tellStorage();
  $('clear').textContent = 'Delete all';
  document.body.classList.remove('side-open');
  $('settings').showModal();
}

function keepSettings() {
  const moved = baseOf($('set-base').value) !== baseOf(settings.base);
  // One server's key is none of another's business.
  if (moved && $('set-key').value === readKey()) $('set-key').value = '';
  settings.base = $('set-base').value.trim();
  settings.system = $('set-system').value;
  for (const name of ['stop', 'tools', 'schema']) settings[name] = $('set-' + name).value;
  settings.sampling = {};
  for (const [name] of SAMPLING)
    if ($('set-' + name).value !== '') settings.sampling[name] = Number($('set-' + name).value);
  keepKey($('set-key').value.trim(), $('set-remember').checked);
  keep('gyre.settings', settings);
  findModels();
}

function exportAll() {
  const file = new Blob([JSON.stringify([...conversations.values()], null, 2)], {type: 'application/json'});
  const a = el('a', {href: URL.createObjectURL(file), download: 'gyre-conversations.json'});
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}

/** Reads what exportAll() wrote, here or elsewhere, and says in the dialog what came of it. */
async function importFile(file) {
  let said;
  try {
    const MiB = Math.round(file.size / (1 << 20));
    if (file.size > MAX_FILE) throw new Error(`it has ${MiB} MiB, more than a browser keeps`);
    const {added, old, left} = mergeConversations(conversationsOf(await file.text()));
    said = `Read from ${file.name}: ${added.length}.` + (old ? ` Here already: ${old}.` : '') +
      (left ? ` Without room in this browser: ${left}.` : '');
    const shown = added.find(c => c.id === current.id);
    if (shown && view === 'chat') showConversation(shown); else listPast();
  } catch (e) {
    said = `${file.name} cannot be read: ${e.message}.`;
  }
  tellStorage(said);
}

/** Asks once more on the button itself. */
function clearAll() {
  if ($('clear').textContent === 'Delete all') { $('clear').textContent = 'Really delete all?'; return; }
  for (const c of [...conversations.values()]) { jobs.get(c.id)?.abort.abort(); dropConversation(c.id); }
  $('settings').close();
  $('search').value = '';
  location.hash = '#new';
  listPast();
}

// ---- views --------------------------------------------------------------------------------------------------------

function route() {
  const id = location.hash.slice(1);
  const before = view;
  view = id === 'race' ? 'race' : 'chat';
  if (view !== before) { $('ask').value = ''; fitHeight($('ask')); }
  $('chat').hidden = view === 'race';
  $('race').hidden = view !== 'race';
  document.querySelector('.model').hidden = view === 'race';
  $('ask').placeholder = view === 'race' ? 'Write a prompt for both' : 'Write a message';
  document.body.classList.remove('side-open');
  $('side-open').setAttribute('aria-expanded', 'false');
  if (view === 'race') {
    openRace(); refresh(); listPast();
  } else {
    showConversation(conversations.get(id) || newConversation());
  }
  if (matchMedia('(hover: hover)').matches) $('ask').focus();
}

function submit() {
  const text = $('ask').value;
  if (view === 'race' ? racing() : jobs.has(current.id)) return view === 'race' ? stopRace() : stop();
  if (!text.trim()) return;
  if (view === 'race') { startRace(text); return; }
  $('ask').value = '';
  fitHeight($('ask'));
  send(text);
}

const IDEAS = ['Tell me a story about a little fox.', 'Explain how a rainbow is made.', 'Write a haiku about the sea.'];

function start() {
  loadConversations();
  buildSettings();
  setTheme(readJson(localStorage, 'gyre.theme', 'auto'));
  $('ideas').replaceChildren(...IDEAS.map(t => el('li', {},
      el('button', {type: 'button', onclick: () => send(t)}, t))));
  $('composer').addEventListener('submit', e => { e.preventDefault(); submit(); });
  $('ask').addEventListener('input', () => { fitHeight($('ask')); refresh(); });
  $('ask').addEventListener('keydown', e => {
    const busy = view === 'race' ? racing() : jobs.has(current.id);
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!busy) submit(); }
    if (e.key === 'ArrowUp' && !$('ask').value && view === 'chat' && !busy) {
      const edits = $('log').querySelectorAll('.msg.user [aria-label="Edit the message"]');
      if (edits.length) { e.preventDefault(); edits[edits.length - 1].click(); }
    }
  });
  document.addEventListener('keydown', e => {
    if (e.key !== 'Escape' || $('settings').open) return;
    if (document.body.classList.contains('side-open')) document.body.classList.remove('side-open');
    else if (view === 'race') stopRace(); else stop();
  });
  $('chat').addEventListener('scroll', () => {
    const far = $('chat').scrollHeight - $('chat').scrollTop - $('chat').clientHeight;
    follows = far < 60;
    $('latest').hidden = far < 300;
  });
  new ResizeObserver(() => { if (follows && view === 'chat') toEnd(); }).observe($('chat'));
  $('latest').addEventListener('click', () => { follows = true; toEnd(); });
  $('model').addEventListener('change', () => keep('gyre.model', $('model').value));
  $('theme').addEventListener('click', nextTheme);
  $('open-settings').addEventListener('click', openSettings);
  $('settings').addEventListener('close', keepSettings);
  $('export').addEventListener('click', exportAll);
  $('import').addEventListener('click', () => $('import-file').click());
  $('import-file').addEventListener('change', () => {
    const [file] = $('import-file').files;
    if (file) importFile(file);
    $('import-file').value = '';
  });
  $('clear').addEventListener('click', clearAll);
  $('search').addEventListener('input', listPast);
  $('search').addEventListener('keydown', e => {
    if (e.key === 'Escape' && $('search').value) { e.stopPropagation(); $('search').value = ''; listPast(); }
    if (e.key === 'Enter') $('past').querySelector('a')?.click();
  });
  $('side-open').addEventListener('click', () => {
    document.body.classList.add('side-open');
    $('side-open').setAttribute('aria-expanded', 'true');
    $('side-close').focus();
  });
  for (const id of ['side-close', 'shade']) $(id).addEventListener('click', () => {
    document.body.classList.remove('side-open');
    $('side-open').setAttribute('aria-expanded', 'false');
  });
  $('go-new').addEventListener('click', () => { if (location.hash === '#new') route(); });
  addEventListener('hashchange', route);
  addEventListener('pagehide', () => {
    for (const id of jobs.keys()) if (conversations.has(id)) keep('gyre.c.' + id, conversations.get(id));
  });
  addEventListener('storage', e => { // another tab
    if (!e.key?.startsWith('gyre.c.')) return;
    const id = e.key.slice('gyre.c.'.length);
    if (jobs.has(id)) return;
    loadConversation(id);
    if (current.id === id && conversations.has(id)) showConversation(conversations.get(id)); else listPast();
  });
  route();
  findModels();
}

start();
