// client.js - an OpenAI-compatible server: its models, and a chat answer as it streams, with the times that matter.
//
// The server is not trusted either: bad JSON, a stream that breaks off or an answer of another kind become a sentence.

const MAX_ANSWER = 4 << 20; // characters; localStorage and the page hold no more
const SAMPLING = [ // name, label, hint, attributes of the input
  ['temperature', 'Temperature', '0 is the likeliest token', {min: 0, max: 2, step: 0.05}],
  ['top_p', 'Top p', '', {min: 0, max: 1, step: 0.01}],
  ['top_k', 'Top k', '', {min: 0, step: 1}],
  ['min_p', 'Min p', '', {min: 0, max: 1, step: 0.01}],
  ['max_tokens', 'Max tokens', '', {min: 1, step: 1}],
  ['seed', 'Seed', '', {min: 0, step: 1}],
  ['repetition_penalty', 'Repetition penalty', '', {min: 0.01, max: 2, step: 0.01}],
  ['presence_penalty', 'Presence penalty', '', {min: -2, max: 2, step: 0.1}],
  ['frequency_penalty', 'Frequency penalty', '', {min: -2, max: 2, step: 0.1}],
];

class ServerError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

/** What people paste: with or without /v1, a slash, a scheme. Empty is where this page came from. */
function baseOf(text) {
  let t = (text || '').trim().replace(/\/+$/, '').replace(/\/v1$/, '');
  if (!t) return location.origin;
  return /^https?:\/\//i.test(t) ? t : 'http://' + t;
}

const headersFor = server => ({'Content-Type': 'application/json',
    ...(server.key ? {Authorization: 'Bearer ' + server.key} : {})});

/** fetch, whose own error says nothing, with a sentence. */
async function call(server, path, init) {
  const base = baseOf(server.base);
  try {
    return await fetch(base + path,
        {...init, headers: headersFor(server), credentials: 'omit', referrerPolicy: 'no-referrer'});
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ServerError(base === location.origin ? 'The server does not answer. Is it still running?' :
      `${base} does not answer, or does not let pages of ${location.origin} ask: a gyre server does when started ` +
      `with --allowed-origin ${location.origin}`, 0);
  }
}

async function faultOf(response) {
  const text = await response.text().catch(() => '');
  let message = '';
  try {
    const body = JSON.parse(text);
    message = body.error?.message ?? body.message ?? body.detail ?? body.error;
  } catch { /* not JSON: the status says it */ }
  if (typeof message !== 'string' || !message) message = response.statusText || 'an error without a message';
  const wait = response.headers.get('Retry-After');
  const again = wait && /^\d+$/.test(wait) ? ` (try again in ${wait} s)` : '';
  return new ServerError(`${response.status}: ${message.slice(0, 1000)}${again}`, response.status);
}

async function listModels(server, signal) {
  const response = await call(server, '/v1/models', {signal});
  if (!response.ok) throw await faultOf(response);
  const body = await response.json().catch(() => null);
  if (!Array.isArray(body?.data))
    throw new ServerError(baseOf(server.base) + ' answers, but not as an OpenAI-compatible server does', 0);
  return body.data.map(m => m?.id).filter(id => typeof id === 'string');
}

/** The data of each event. Lines end with \n or \r\n; comments and other fields are passed over. arrived() is called
 *  for each piece of the network, which may hold many events. */
async function* eventsOf(body, arrived) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = '', data = [];
  try {
    for (;;) {
      const {done, value} = await reader.read();
      arrived();
      rest += done ? decoder.decode() + '\n\n' : decoder.decode(value, {stream: true});
      if (rest.length > MAX_ANSWER) throw new ServerError('The server sent an event without an end', 0);
      const lines = rest.split('\n');
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
        if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
        else if (line === '' && data.length) { yield data.join('\n'); data = []; }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Streams one answer into `into`: {content, reasoning, calls, finish, stats}. changed() is called for each piece.
 *  stats: ms from the request to the first text (ttft), to the last (total), tokens, and tokens a second after the
 *  first. */
async function streamChat(server, body, into, changed, signal) {
  const start = performance.now();
  let now = start, arrivals = 0, lastArrival = 0;
  const stats = into.stats = {ttft: null, total: null, tokens: 0, counted: false, rate: null, thought: null};
  let first = 0, last = 0, ended = false, pieces = 0;
  const measure = () => {
    stats.total = last - start;
    if (!stats.counted) stats.tokens = pieces;
    // What came in one or two pieces says when the network handed it over, not how fast it was made.
    stats.rate = stats.tokens > 1 && last > first && arrivals > 2 ? (stats.tokens - 1) / (last - first) * 1000 : null;
  };
  const take = choice => {
    const delta = choice.delta ?? choice.message ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning, said = delta.content;
    if (choice.finish_reason) into.finish = choice.finish_reason;
    const calls = delta.tool_calls?.length > 0;
    if (!(typeof thought === 'string' && thought) && !(typeof said === 'string' && said) && !calls) return;
    last = now;
    pieces++;
    if (lastArrival !== now) { arrivals++; lastArrival = now; }
    if (!first) { first = last; stats.ttft = first - start; }
    if (typeof thought === 'string') into.reasoning += thought;
    if (typeof said === 'string' && said) {
      if (into.reasoning && stats.thought === null) stats.thought = last - first;
      into.content += said;
    }
    if (calls) takeCalls(into, delta.tool_calls);
    const called = (into.calls ?? []).reduce((n, c) => n + c.name.length + c.arguments.length, 0);
    if (into.content.length + into.reasoning.length + called > MAX_ANSWER)
      throw new ServerError('The answer is longer than this page keeps, and was cut', 0);
    measure();
    changed();
  };
  const use = chunk => {
    if (chunk.error) throw new ServerError(String(chunk.error.message ?? chunk.error).slice(0, 1000), 0);
    if (chunk.choices?.[0]) take(chunk.choices[0]);
    if (Number.isFinite(chunk.usage?.completion_tokens)) {
      stats.tokens = chunk.usage.completion_tokens;
      stats.counted = true;
      if (first) measure();
    }
  };

  const response = await call(server, '/v1/chat/completions',
      {method: 'POST', signal, body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}})});
  if (!response.ok) throw await faultOf(response);
  const type = response.headers.get('Content-Type') || '';
  if (type.includes('json')) {
    const whole = await response.json().catch(() => { throw new ServerError('The server sent JSON that is none', 0); });
    now = performance.now();
    use(whole);
    return;
  }
  if (!type.includes('event-stream'))
    throw new ServerError(
      `The server answered with ${type || 'something without a type'} where a stream was asked for`, 0);
  try {
    for await (const data of eventsOf(response.body, () => { now = performance.now(); })) {
      if (data === '[DONE]') { ended = true; break; }
      let chunk;
      try { chunk = JSON.parse(data); } catch { throw new ServerError('The server sent an event that is not JSON', 0); }
      if (chunk && typeof chunk === 'object') use(chunk);
    }
  } catch (e) {
    if (e.name === 'AbortError' || e instanceof ServerError) throw e;
    throw new ServerError('The connection broke off in the middle of the answer', 0);
  }
  if (!ended && !into.finish) throw new ServerError('The answer ended before the server said that it was complete', 0);
}
