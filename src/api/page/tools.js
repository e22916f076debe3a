// tools.js - tools and forms: what a person attaches to requests, the calls that come back, and their results.
//
// A call is {id, name, arguments: text} in the message that made it; its result is a message of its own, {role: 'tool',
// content, call: id}, behind it. The person is the tool: they type results, all of one answer at once.

const MAX_CALLS = 128;

/** What the settings say of tools and form, as fields of a request. Throws a sentence if a text is none. */
function attached() {
  const body = {};
  const parse = (text, name) => {
    try { return JSON.parse(text); } catch (e) { throw new ServerError(`${name} in the settings: ${e.message}`, 0); }
  };
  if (settings.tools?.trim()) {
    body.tools = parse(settings.tools, 'The tools');
    if (!Array.isArray(body.tools)) throw new ServerError('The tools in the settings are not a JSON array', 0);
  }
  if (settings.schema?.trim())
    body.response_format = {type: 'json_schema',
      json_schema: {name: 'form', strict: true, schema: parse(settings.schema, 'The form')}};
  return body;
}

/** Puts the pieces of calls that a stream brought into the message. */
function takeCalls(message, pieces) {
  if (!Array.isArray(pieces)) return;
  const text = v => typeof v === 'string' ? v : '';
  pieces.forEach((piece, i) => {
    const at = piece?.index ?? i;
    if (!Number.isInteger(at) || at < 0 || at >= MAX_CALLS)
      throw new ServerError('The server sent a call of a tool that has no place', 0);
    const calls = message.calls ??= [];
    while (calls.length <= at) calls.push({id: '', name: '', arguments: ''});
    calls[at].id += text(piece.id);
    calls[at].name += text(piece.function?.name);
    calls[at].arguments += text(piece.function?.arguments);
  });
}

/** The results that stand behind the message, in the order of its calls; null unless each call has one. */
function resultsOf(c, message) {
  const found = [];
  for (let i = c.messages.indexOf(message) + 1; c.messages[i]?.role === 'tool'; i++) found.push(c.messages[i]);
  return message.calls?.length && found.length === message.calls.length ? found : null;
}

/** The messages as a server wants them. Calls that nobody answered are left out: no template takes those. */
function messagesFor(c) {
  const messages = [];
  for (const m of c.messages) {
    if (m.role === 'tool') continue; // with their calls
    const results = m.calls && resultsOf(c, m);
    if (results) {
      const calls = m.calls.map(({id, ...f}) => ({id, type: 'function', function: f}));
      messages.push({role: 'assistant', content: m.content, tool_calls: calls});
      for (const r of results) messages.push({role: 'tool', tool_call_id: r.call, content: r.content});
    } else if (m.role === 'user' || m.content) messages.push({role: m.role, content: m.content});
  }
  return messages;
}

/** JSON in lines, if it is that. */
function inLines(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

/** Of one answer the calls, and while it is the last message the places for their results. */
class CallsView {
  constructor(m) {
    this.m = m;
    this.list = el('div', {class: 'calls', hidden: true});
  }
  update(busy) {
    const calls = this.m.calls || [], asks = !busy && calls.length > 0 && current.messages.at(-1) === this.m;
    const state = JSON.stringify([calls, asks]);
    if (state === this.state) return;
    this.state = state;
    this.list.hidden = calls.length === 0;
    const onkeydown = e => {
      if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); this.next(e.target); }
    };
    this.areas = calls.map(c => el('textarea',
      {rows: 1, placeholder: 'What it gives back', 'aria-label': `Result of ${c.name}`, onkeydown}));
    this.list.replaceChildren(...calls.map((c, i) => el('div', {class: 'call'}, el('b', {}, c.name),
      el('pre', {}, inLines(c.arguments)), asks && this.areas[i])),
      asks ? el('div', {class: 'buttons'}, el('button',
        {type: 'button', class: 'primary', onclick: () => this.submit()},
        calls.length > 1 ? 'Send the results' : 'Send the result')) : '');
  }
  next(area) {
    const after = this.areas[this.areas.indexOf(area) + 1];
    if (after) after.focus(); else this.submit();
  }
  submit() {
    if (jobs.has(current.id) || current.messages.at(-1) !== this.m) return;
    giveResults(this.m, this.areas.map(a => a.value));
  }
}

const toolElement = m =>
  el('article', {class: 'msg tool', 'aria-label': 'Result'}, el('pre', {dir: 'auto'}, m.content));
