// chat.js - the conversation: what is shown of it, asking, stopping, editing, asking again.
//
// A job is an answer on its way. It belongs to a conversation and goes on when another one is looked at.

const jobs = new Map(); // conversation id to {abort, message, view}
let current = newConversation();
let follows = true; // the end stays in sight while text comes

// ---- asking -------------------------------------------------------------------------------------------------------

function requestFor(c) {
  const messages = messagesFor(c);
  if (settings.system.trim()) messages.unshift({role: 'system', content: settings.system});
  return {model: $('model').value || undefined, messages, ...sampling(), ...attached()};
}

/** Asks for the next message, or for more of the last one: `begun`, with the element that shows it. */
async function answer(c, begun = null) {
  let body;
  try { body = requestFor(c); } catch (e) { notice(e.message, {label: 'Settings', run: openSettings}); return; }
  const message = begun?.m ?? {role: 'assistant', content: '', reasoning: '', model: body.model};
  const job = {abort: new AbortController(), message, view: begun, due: false, kept: 0};
  const thought = message.stats?.thought;
  if (begun) {
    Object.assign(body, {continue_final_message: true, add_generation_prompt: false});
    for (const end of ['finish', 'stopped', 'fault', 'empty']) delete message[end];
  } else c.messages.push(message);
  jobs.set(c.id, job);
  if (c === current) {
    if (begun) begun.update(true); else job.view = addMessage(message, true);
    toEnd();
  }
  refresh();
  keepConversation(c);
  listPast();
  try {
    await streamChat(server(), body, message, () => progress(c, job), job.abort.signal);
    if (!message.content && !message.reasoning && !message.calls) message.empty = true;
  } catch (e) {
    if (e.name === 'AbortError') message.stopped = true;
    else message.fault = e instanceof ServerError ? e.message : 'This page failed: ' + e.message;
    if (e.status === 401) askForKey();
  }
  if (thought) message.stats.thought = thought;
  jobs.delete(c.id);
  if (conversations.has(c.id)) keepConversation(c);
  if (c === current) finish(job);
  refresh();
  listPast();
}

/** At most once a frame on the screen, and once a second in storage. */
function progress(c, job) {
  const now = Date.now();
  if (now - job.kept > 1000 && conversations.has(c.id)) { job.kept = now; keep('gyre.c.' + c.id, c); }
  if (job.due || c !== current) return;
  job.due = true;
  requestAnimationFrame(() => {
    job.due = false;
    if (c !== current || !jobs.has(c.id)) return;
    job.view.update(true);
    if (follows) toEnd();
  });
}

function finish(job) {
  const m = job.message;
  job.view.update(false);
  if (follows) toEnd();
  say(m.fault ? 'Failed: ' + m.fault : m.stopped ? 'Stopped' : 'The answer is complete');
}

function send(text) {
  if (!text.trim() || jobs.has(current.id)) return;
  const c = current;
  c.title ||= titleOf(text);
  c.messages.push({role: 'user', content: text});
  if (!conversations.has(c.id)) { conversations.set(c.id, c); history.replaceState(null, '', '#' + c.id); }
  if (c.messages.at(-2)?.calls) showConversation(c); else addMessage(c.messages.at(-1)); // calls are no longer open
  follows = true;
  answer(c);
}

/** Puts the results of a message's calls behind it, and asks for what the model makes of them. */
function giveResults(message, results) {
  const c = current;
  message.calls.forEach((call, i) => c.messages.push({role: 'tool', call: call.id, content: results[i]}));
  showConversation(c);
  answer(c);
}

function stop() { jobs.get(current.id)?.abort.abort(); }

/** Takes back everything from a message on. */
function cutAt(message) {
  const at = current.messages.indexOf(message);
  if (at < 0) return false;
  current.messages.length = at;
  while ($('log').children.length > at) $('log').lastChild.remove();
  return true;
}

/** Waits until a stopped answer is out of the way. */
async function settled(c) {
  jobs.get(c.id)?.abort.abort();
  while (jobs.has(c.id)) await new Promise(r => setTimeout(r, 5));
}

async function regenerate(message) {
  const c = current;
  await settled(c);
  if (c === current && cutAt(message)) { follows = true; answer(c); }
}

/** Whether the server can go on where the text ends: after a limit, a stop or a connection that broke. */
const canGoOn = m => !!m.content && (m.finish === 'length' || !!m.stopped || !!m.fault);

function goOn(shown) {
  if (jobs.has(current.id) || current.messages.at(-1) !== shown.m) return;
  follows = true;
  answer(current, shown);
}

async function resend(message, text) {
  const c = current;
  await settled(c);
  if (c !== current || !cutAt(message)) return;
  if (c.messages.length === 0) c.title = titleOf(text);
  send(text);
}

// ---- showing ------------------------------------------------------------------------------------------------------

function figures(m) {
  const s = m.stats, parts = [];
  if (!s || s.ttft === null || s.ttft === undefined) return parts;
  const figure = (value, unit, title) => el('span', {title}, el('b', {}, value), ' ' + unit);
  if (s.rate) parts.push(figure((s.counted ? '' : '≈ ') + rate(s.rate), 'tok/s', 'tokens a second after the first'));
  parts.push(figure(seconds(s.ttft), 'to first token', 'from sending the request to the first text'));
  if (s.tokens) parts.push(figure((s.counted ? '' : '≈ ') + s.tokens.toLocaleString('en'),
      s.tokens === 1 ? 'token' : 'tokens', s.counted ? 'counted by the server' : 'pieces of the stream'));
  return parts;
}

function ending(m) {
  if (m.stopped) return 'stopped';
  if (m.finish === 'length') return 'cut at the token limit';
  if (m.empty) return 'an empty answer';
  return m.finish && m.finish !== 'stop' && m.finish !== 'tool_calls' ? String(m.finish).slice(0, 40) : '';
}

/** The element of an answer, kept in step with its message by update(busy). */
class AnswerView {
  constructor(m) {
    this.m = m;
    this.thoughts = el('div', {class: 'thoughts'});
    this.summary = el('summary', {});
    this.details = el('details', {class: 'reasoning', hidden: true}, this.summary, this.thoughts);
    this.waiting = el('span', {class: 'waiting', role: 'img', 'aria-label': 'waiting for the first token'},
        el('i'), el('i'), el('i'));
    this.text = el('div', {class: 'md'});
    this.calls = new CallsView(m);
    this.fault = el('div', {class: 'fault', role: 'alert', hidden: true});
    this.stats = el('span', {class: 'stats'});
    const copy = iconButton('copy', 'Copy the answer', () => copyText(m.content, copy, {icon: 'copy'}));
    this.more = el('button', {type: 'button', class: 'more', title: 'Let the model go on where the text ends',
      onclick: () => goOn(this)}, 'Continue');
    this.actions = [copy, iconButton('again', 'Ask again', () => regenerate(m))];
    this.element = el('article', {class: 'msg assistant', 'aria-label': 'Answer'}, this.details, this.waiting,
        this.text, this.calls.list, this.fault,
      el('div', {class: 'tools'}, this.actions, this.stats, this.more));
    this.markdown = new MarkdownView(this.text);
  }
  update(busy) {
    const m = this.m;
    this.element.classList.toggle('busy', busy);
    this.element.setAttribute('aria-busy', busy);
    this.waiting.hidden = !busy || !!m.content || !!m.reasoning || !!m.calls;
    this.details.hidden = !m.reasoning;
    if (m.reasoning) {
      const thinking = busy && !m.content;
      this.details.classList.toggle('live', thinking);
      this.summary.textContent = thinking ? 'Thinking' :
          m.stats?.thought ? `Thought for ${seconds(m.stats.thought)}` : 'Thoughts';
      if (this.thoughts.textContent.length !== m.reasoning.length) this.thoughts.textContent = m.reasoning;
    }
    this.markdown.show(m.content);
    this.calls.update(busy);
    this.fault.hidden = !m.fault;
    this.fault.textContent = m.fault || '';
    for (const a of this.actions) a.hidden = busy;
    this.more.hidden = busy || !canGoOn(m);
    const end = busy ? '' : ending(m);
    this.stats.replaceChildren(...figures(m), end ? el('span', {}, end) : '');
  }
}

function editMessage(m, article) {
  const area = el('textarea', {value: m.content, rows: 1, 'aria-label': 'Edit the message'});
  const shown = [...article.childNodes];
  const cancel = () => { article.replaceChildren(...shown); $('ask').focus(); };
  const submit = () => { if (area.value.trim()) resend(m, area.value); };
  area.addEventListener('input', () => fitHeight(area));
  area.addEventListener('keydown', e => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); submit(); }
    if (e.key === 'Escape') { e.stopPropagation(); cancel(); }
  });
  article.replaceChildren(el('div', {class: 'edit'}, area, el('div', {class: 'buttons'},
    el('button', {type: 'button', onclick: cancel}, 'Cancel'),
    el('button', {type: 'button', class: 'primary', onclick: submit}, 'Send'))));
  fitHeight(area);
  area.focus();
}

function userElement(m) {
  const text = el('div', {class: 'text', dir: 'auto'}, m.content);
  const copy = iconButton('copy', 'Copy the message', () => copyText(m.content, copy, {icon: 'copy'}));
  const article = el('article', {class: 'msg user', 'aria-label': 'You'}, text,
    el('div', {class: 'tools'}, iconButton('edit', 'Edit the message', () => editMessage(m, article)), copy));
  return article;
}

/** Returns the view of an answer. */
function addMessage(m, busy = false) {
  if (m.role === 'tool') { $('log').append(toolElement(m)); return null; }
  if (m.role !== 'assistant') { $('log').append(userElement(m)); return null; }
  const view = new AnswerView(m);
  view.update(busy);
  $('log').append(view.element);
  return view;
}

function toEnd() {
  $('chat').scrollTop = $('chat').scrollHeight;
  $('latest').hidden = true;
}

function pastRow(c, excerpt) {
  return el('li', {class: jobs.has(c.id) && 'busy'},
    el('a', {href: '#' + c.id, title: c.title, 'aria-current': c === current && view === 'chat' ? 'page' : null},
      c.title || 'Untitled', excerpt && el('span', {class: 'excerpt'}, excerpt)),
    iconButton('trash', 'Delete ' + (c.title || 'this conversation'), () => forget(c)));
}

/** The conversations, the last one first; of a search those that have all of its words. */
function listPast() {
  const words = wordsOf($('search').value), rows = [];
  for (const c of [...conversations.values()].sort((a, b) => b.updated - a.updated)) {
    const excerpt = words.length ? foundIn(c, words) : '';
    if (excerpt !== null) rows.push(pastRow(c, excerpt));
  }
  $('search').hidden = conversations.size < 2 && !words.length;
  $('past-none').textContent = words.length ? 'No conversation has all of these words.' :
    'They are kept in this browser and nowhere else.';
  $('past').replaceChildren(...rows);
}

function forget(c) {
  jobs.get(c.id)?.abort.abort();
  dropConversation(c.id);
  if (c === current) location.hash = '#new';
  listPast();
  const run = () => { keepConversation(c); location.hash = '#' + c.id; notice(''); listPast(); };
  notice(`Deleted “${titleOf(c.title, 30)}”.`, {label: 'Undo', run}, 'news');
}

function showConversation(c) {
  current = c;
  follows = true;
  $('log').replaceChildren();
  for (const m of c.messages) {
    const job = jobs.get(c.id), shown = addMessage(m, job?.message === m);
    if (job?.message === m) job.view = shown;
  }
  toEnd();
  refresh();
  listPast();
}

/** What depends on whether an answer is on its way. */
function refresh() {
  const busy = view === 'race' ? racing() : jobs.has(current.id);
  $('send').replaceChildren(icon(busy ? 'stop' : 'send'));
  $('send').setAttribute('aria-label', busy ? 'Stop' : view === 'race' ? 'Start the race' : 'Send');
  $('send').disabled = !busy && !$('ask').value.trim();
  $('title').textContent = view === 'race' ? 'Race' : current.title || 'New conversation';
  for (const [link, on] of [['go-race', view === 'race'], ['go-new', view === 'chat' && current.messages.length === 0]])
    if (on) $(link).setAttribute('aria-current', 'page'); else $(link).removeAttribute('aria-current');
  document.title = view === 'race' ? 'Race · gyre' : current.title ? current.title + ' · gyre' : 'gyre';
}
