// race.js - one prompt to two servers at once, with the same settings, and who was faster in what.

const panes = [];
let raceJobs = null; // [AbortController, AbortController] while it goes on

const racing = () => raceJobs !== null;

class Pane {
  constructor(letter, kept) {
    this.letter = letter;
    this.base = el('input', {inputMode: 'url', autocapitalize: 'off', value: kept.base || '',
        placeholder: 'this server', 'aria-label': `Address of server ${letter}`});
    this.key = el('input', {type: 'password', placeholder: 'API key', autocomplete: 'off',
        'aria-label': `API key of server ${letter}`});
    this.model = el('select', {'aria-label': `Model of server ${letter}`},
        el('option', {value: kept.model || ''}, kept.model || 'first model'));
    this.figure = {};
    this.body = el('div', {class: 'pane-body', tabIndex: 0, 'aria-label': `Answer of server ${letter}`},
        el('p', {class: 'none'}, 'The answer will be here.'));
    const figure = (name, label) => el('div', {}, el('dt', {}, label), this.figure[name] = el('dd', {}, '–'));
    this.element = el('section', {class: 'pane', 'aria-label': `Server ${letter}`},
      el('div', {class: 'pane-head'}, el('span', {class: 'letter', 'aria-hidden': true}, letter), this.base,
        el('div', {class: 'pair'}, el('label', {}, this.model), el('label', {}, this.key))),
      el('dl', {class: 'figures'}, figure('ttft', 'First token'), figure('rate', 'Tokens/s'), figure('total', 'Total'),
          figure('tokens', 'Tokens')), this.body);
    this.base.addEventListener('change', () => { keepRace(); this.findModels(); });
    this.key.addEventListener('change', () => this.findModels());
    this.model.addEventListener('change', keepRace);
  }
  server() {
    const base = this.base.value.trim(), own = baseOf(base) === baseOf(settings.base);
    return {base: base || settings.base, key: this.key.value || (own || !base ? readKey() : '')};
  }
  async findModels() {
    const asked = this.asked = {}; // an answer that comes after another question is old
    try {
      const names = await listModels(this.server()), wanted = this.model.value;
      if (asked !== this.asked) return;
      if (names.length) this.model.replaceChildren(...names.map(n =>
          el('option', {value: n, selected: n === wanted}, n)));
      this.show(null, '');
    } catch (e) {
      if (asked === this.asked && !racing()) this.show(null, e.message);
    }
  }
  /** Figures and text of a result; a fault in its place. */
  show(result, fault) {
    const s = result?.stats, about = s && !s.counted ? '≈ ' : '';
    this.figure.ttft.textContent = s?.ttft ? seconds(s.ttft) : '–';
    this.figure.rate.textContent = s?.rate ? about + rate(s.rate) : '–';
    this.figure.total.textContent = s?.total ? seconds(s.total) : '–';
    this.figure.tokens.textContent = s?.tokens ? about + s.tokens.toLocaleString('en') : '–';
    if (fault) return this.body.replaceChildren(el('div', {class: 'fault', role: 'alert'}, fault));
    if (!result) return;
    this.answer.update(result.busy);
    this.answer.stats.replaceChildren(result.stopped ? 'stopped' : '');
    this.answer.element.querySelector('.tools').hidden = !result.stopped;
    if (this.follows()) this.body.scrollTop = this.body.scrollHeight;
  }
  follows() { return this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 80; }
  clear() {
    this.element.classList.remove('won');
    for (const f of this.element.querySelectorAll('.best')) f.classList.remove('best');
  }
  async run(prompt, signal) {
    const result = {role: 'assistant', content: '', reasoning: '', busy: true, stats: null};
    let due = false;
    this.answer = new AnswerView(result);
    for (const a of this.answer.actions) a.remove();
    this.body.replaceChildren(this.answer.element);
    this.show(result);
    const messages = [{role: 'user', content: prompt}];
    if (settings.system.trim()) messages.unshift({role: 'system', content: settings.system});
    try {
      await streamChat(this.server(), {model: this.model.value || undefined, messages, ...sampling()}, result, () => {
        if (due) return;
        due = true;
        requestAnimationFrame(() => { due = false; if (result.busy) this.show(result); });
      }, signal);
      if (!result.stats.ttft) result.fault = 'an empty answer';
    } catch (e) {
      if (e.name === 'AbortError') result.stopped = true; else result.fault = e.message;
    }
    result.busy = false;
    this.show(result);
    return result;
  }
}

const keepRace = () => keep('gyre.race', panes.map(p => ({base: p.base.value, model: p.model.value})));

function openRace() {
  if (panes.length) return;
  const kept = readJson(localStorage, 'gyre.race', []);
  for (const [i, letter] of ['A', 'B'].entries()) panes.push(new Pane(letter, kept[i] || {}));
  $('panes').replaceChildren(...panes.map(p => p.element));
  for (const p of panes) p.findModels();
}

/** Marks who was better in a figure; ties within 1 % are nobody's. Returns the ratio and the winner's place, or
 *  null. */
function compare(results, name, higher) {
  const [a, b] = results.map(r => r.stats[name]);
  if (!a || !b || Math.abs(a - b) <= 0.01 * Math.max(a, b)) return null;
  const winner = (a > b) === higher ? 0 : 1;
  panes[winner].figure[name].parentNode.classList.add('best');
  return {winner, ratio: Math.max(a, b) / Math.min(a, b)};
}

const times = r => (r < 10 ? r.toFixed(2) : Math.round(r)) + ' times';

/** Who finished first has won. Answers of different length do not compare by that, which is said. */
function judge(results) {
  if (results.some(r => r.stopped)) return ['Stopped.'];
  const well = results.map(r => !r.fault);
  if (!well[0] && !well[1]) return ['Neither server answered.'];
  if (!well[0] || !well[1]) return [el('b', {}, panes[well[0] ? 0 : 1].letter + ' wins'), ': the other one failed.'];
  const total = compare(results, 'total', false), first = compare(results, 'ttft', false),
      rates = compare(results, 'rate', true);
  const parts = total ?
      [el('b', {}, `${panes[total.winner].letter} wins`), `: done ${times(total.ratio)} as fast`] :
      [el('b', {}, 'A draw'), ': both were done within 1 %'];
  if (total) panes[total.winner].element.classList.add('won');
  if (rates) parts.push(`, ${panes[rates.winner].letter} with ${times(rates.ratio)} the tokens a second`);
  if (first) parts.push(`, first token from ${panes[first.winner].letter} ${times(first.ratio)} as soon`);
  const lengths = results.map(r => r.stats.tokens);
  if (Math.abs(lengths[0] - lengths[1]) > 0.1 * Math.max(...lengths))
    parts.push('. The answers differ in length, so tokens a second say more than the total');
  return [...parts, '.'];
}

async function startRace(prompt) {
  keepRace();
  raceJobs = panes.map(() => new AbortController());
  $('verdict').textContent = '';
  for (const p of panes) p.clear();
  refresh();
  const results = await Promise.all(panes.map((p, i) => p.run(prompt, raceJobs[i].signal)));
  raceJobs = null;
  $('verdict').replaceChildren(...judge(results));
  refresh();
}

function stopRace() { raceJobs?.forEach(j => j.abort()); }
