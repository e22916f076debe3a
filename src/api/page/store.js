// store.js - what this browser keeps: settings and conversations, in localStorage under "gyre.".
//
// One entry a conversation, so that two tabs do not overwrite each other's:
//   gyre.c.ID   {id, title, created, updated, messages: [{role, content, reasoning?, calls?, call?, stats?, model?,
//                fault?, stopped?}]}
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

const settings = {base: '', system: '', stop: '', tools: '', schema: '', sampling: {},
    ...readJson(localStorage, 'gyre.settings', {})};
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

// ---- searching ----------------------------------------------------------------------------------------------------

const wordsOf = text => text.toLowerCase().split(/\s+/).filter(w => w !== '');

/** Null if a word is neither in the title nor in a message. Else what stands around the first that the title lacks. */
function foundIn(c, words) {
  const title = c.title.toLowerCase(), texts = c.messages.map(m => m.content.toLowerCase());
  let excerpt = '';
  for (const word of words) {
    if (title.includes(word)) continue;
    const k = texts.findIndex(t => t.includes(word));
    if (k < 0) return null;
    const at = texts[k].indexOf(word), from = Math.max(0, at - 20);
    const around = c.messages[k].content.slice(from, at + word.length + 40).replace(/\s+/g, ' ').trim();
    excerpt ||= (from > 0 ? '… ' : '') + around;
  }
  return excerpt;
}

// ---- a file of conversations --------------------------------------------------------------------------------------

const MAX_FILE = 32 << 20; // bytes; the browser keeps less
const TEXTS = {reasoning: 1, call: 1, model: 1, fault: 1, finish: 1}, FLAGS = {stopped: 1, empty: 1};
const FIGURES = ['ttft', 'total', 'tokens', 'rate', 'thought'];

/** A message with what this page knows of one and nothing else; a file may come from anybody. */
function cleanMessage({role, content, stats, calls, ...rest}) {
  const m = {role, content};
  if (Array.isArray(calls) && calls.length <= MAX_CALLS)
    m.calls = calls.map(c => Object.fromEntries(['id', 'name', 'arguments'].map(
        k => [k, typeof c?.[k] === 'string' ? c[k] : ''])));
  for (const [name, value] of Object.entries(rest))
    if (Object.hasOwn(TEXTS, name) ? typeof value === 'string' : Object.hasOwn(FLAGS, name) && value === true)
      m[name] = value;
  if (stats && typeof stats === 'object') {
    m.stats = {counted: stats.counted === true};
    for (const name of FIGURES) m.stats[name] = Number.isFinite(stats[name]) ? stats[name] : null;
  }
  return m;
}

/** The conversations of a file that this page or another one of it wrote. Throws a sentence. */
function conversationsOf(text) {
  let list;
  try { list = JSON.parse(text); } catch { throw new Error('it is not JSON'); }
  if (!Array.isArray(list)) throw new Error('it is not a list of conversations, as “Save as a file” writes it');
  return list.map((c, i) => {
    const isOurs = isConversation(c) && /^[a-z0-9]{1,40}$/.test(c.id);
    if (!isOurs || !c.messages.every(m => ['user', 'assistant', 'tool'].includes(m.role)))
      throw new Error(`entry ${i + 1} is not a conversation of this page`);
    const when = t => Number.isFinite(t) ? t : 0;
    const title = typeof c.title === 'string' ? c.title.slice(0, 200) : '';
    return {id: c.id, title, created: when(c.created), updated: when(c.updated),
        messages: c.messages.map(cleanMessage)};
  });
}

/** Keeps those that are not here, or here in an older state: {added, old, left}; left: for which there was no room. */
function mergeConversations(list) {
  const result = {added: [], old: 0, left: 0};
  for (const c of list) {
    const own = conversations.get(c.id);
    if (own && (own.updated >= c.updated || jobs.has(c.id))) result.old++;
    else if (!keep('gyre.c.' + c.id, c)) result.left++;
    else { conversations.set(c.id, c); result.added.push(c); }
  }
  return result;
}

// ---- keeping ------------------------------------------------------------------------------------------------------

function keepConversation(c) {
  c.updated = Date.now();
  conversations.set(c.id, c);
  if (!keep('gyre.c.' + c.id, c))
    notice('This browser has no room for more: the conversation is not kept. Delete some, or save them as a file ' +
        'first.', {label: 'Settings', run: openSettings});
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
