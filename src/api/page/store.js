// store.js - what this browser keeps: settings and conversations, in localStorage under "gyre.".
//
// One entry a conversation, so that two tabs do not overwrite each other's:
//   gyre.c.ID   {id, title, created, updated, messages: [{role, content, reasoning?, stats?, model?, fault?, stopped?}]}
//   gyre.settings, gyre.theme, gyre.model, gyre.race, gyre.key (or in sessionStorage, until the tab is closed)

const conversations = new Map(); // id to conversation

function readJson(area, name, fallback) {
  try { return JSON.parse(area.getItem(name)) ?? fallback; } catch { return fallback; }
}

/** False when the browser refuses: storage is full or off. */
function keep(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const settings = {base: '', system: '', stop: '', sampling: {}, ...readJson(localStorage, 'gyre.settings', {})};
const readKey = () => readJson(localStorage, 'gyre.key', '') || readJson(sessionStorage, 'gyre.key', '');
const server = () => ({base: settings.base, key: readKey()});

function keepKey(key, remember) {
  try {
    localStorage.removeItem('gyre.key');
    sessionStorage.removeItem('gyre.key');
    if (key) (remember ? localStorage : sessionStorage).setItem('gyre.key', JSON.stringify(key));
  } catch { /* then it is asked for again */ }
}

const isConversation = c => c && typeof c.id === 'string' && Array.isArray(c.messages) &&
  c.messages.every(m => m && typeof m.content === 'string' && typeof m.role === 'string');

function loadConversation(id) {
  const c = readJson(localStorage, 'gyre.c.' + id, null);
  if (isConversation(c)) conversations.set(id, c); else conversations.delete(id);
}

function loadConversations() {
  for (let i = 0; i < localStorage.length; i++) {
    const name = localStorage.key(i);
    if (name.startsWith('gyre.c.')) loadConversation(name.slice('gyre.c.'.length));
  }
}

function newConversation() {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(9)), b => (b % 36).toString(36)).join('');
  return {id, title: '', created: Date.now(), updated: Date.now(), messages: []};
}

/** Text without the blanks of lines, at most n characters, whole words where that is possible. */
function titleOf(text, n = 48) {
  const t = text.replace(/\s+/g, ' ').trim();
  return t.length <= n ? t : t.slice(0, n).replace(/ [^ ]{0,12}$/, '') + ' …';
}

function keepConversation(c) {
  c.updated = Date.now();
  conversations.set(c.id, c);
  if (!keep('gyre.c.' + c.id, c))
    notice('This browser has no room for more: the conversation is not kept. Delete some, or save them as a file first.', {label: 'Settings', run: openSettings});
}

function dropConversation(id) {
  conversations.delete(id);
  localStorage.removeItem('gyre.c.' + id);
}

/** What the settings say of a request, besides its messages. */
function sampling() {
  const body = {};
  for (const [name] of SAMPLING) if (Number.isFinite(settings.sampling[name])) body[name] = settings.sampling[name];
  const stop = settings.stop.split('\n').filter(s => s !== '');
  if (stop.length) body.stop = stop;
  return body;
}
