// tex.js - formulas as models write them, in LaTeX, as MathML, which browsers lay out themselves.
//
// A subset without macros, so that what comes out is bounded by what went in: each token is read once, groups nest to a
// bound, and everything is built of text nodes and the elements of MathML Core that are named here. A command that is
// not known is shown as it is written; a formula that nests too deep or has no end is shown as text. KaTeX and Temml
// know more, in three times as many bytes as this whole page, and expand macros, which hostile text can make costly.

const MAX_NESTING = 40;
const MAX_FORMULA = 8000; // characters
const MATHML = 'http://www.w3.org/1998/Math/MathML';

function math(tag, attributes = {}, ...children) {
  const e = document.createElementNS(MATHML, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children.flat());
  return e;
}

/** "a α b β" as a map. */
function pairs(text) {
  const words = text.trim().split(/\s+/), map = new Map();
  for (let i = 0; i < words.length; i += 2) map.set(words[i], words[i + 1]);
  return map;
}

const LETTERS = pairs(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι
  kappa κ lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ
  varphi φ chi χ psi ψ omega ω ell ℓ hbar ℏ imath ı jmath ȷ aleph ℵ beth ℶ wp ℘ Re ℜ Im ℑ partial ∂ infty ∞ nabla ∇
  emptyset ∅ varnothing ∅ angle ∠ triangle △ square □ Box □ blacksquare ■ qed ∎ top ⊤ bot ⊥ prime ′ degree ° circ ∘
  bullet • checkmark ✓ dagger † ddagger ‡ clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ flat ♭ sharp ♯ natural ♮ S
  § P ¶ pounds £ euro € copyright © ldots … dots … dotsc … cdots ⋯ dotsb ⋯ dotsm ⋯ vdots ⋮ ddots ⋱`);
const CAPITALS = pairs('Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω');
const OPERATORS = pairs(`pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ star ⋆ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ wedge
  ∧ land ∧ vee ∨ lor ∨ cap ∩ cup ∪ sqcap ⊓ sqcup ⊔ uplus ⊎ setminus ∖ smallsetminus ∖ wr ≀ amalg ⨿ bmod mod neg ¬
  lnot ¬ le ≤ leq ≤ leqslant ⩽ ge ≥ geq ≥ geqslant ⩾ ne ≠ neq ≠ ll ≪ gg ≫ equiv ≡ sim ∼ simeq ≃ approx ≈ cong ≅ asymp
  ≍ doteq ≐ coloneqq ≔ propto ∝ prec ≺ succ ≻ preceq ⪯ succeq ⪰ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊
  supsetneq ⊋ sqsubseteq ⊑ sqsupseteq ⊒ in ∈ ni ∋ notin ∉ mid ∣ nmid ∤ parallel ∥ nparallel ∦ perp ⟂ vdash ⊢ dashv ⊣
  models ⊨ vDash ⊨ Vdash ⊩ bowtie ⋈ forall ∀ exists ∃ nexists ∄ therefore ∴ because ∵ lesssim ≲ gtrsim ≳ triangleq ≜
  to → rightarrow → gets ← leftarrow ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby
  ⟸ iff ⟺ mapsto ↦ longmapsto ⟼ longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftarrow ⟸ longleftrightarrow
  ⟷ Longleftrightarrow ⟺ hookrightarrow ↪ hookleftarrow ↩ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓
  nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖ rightharpoonup ⇀ rightharpoondown ⇁ leftharpoonup ↼ rightleftharpoons ⇌
  rightrightarrows ⇉ leadsto ⇝ colon : lt < gt > vert | Vert ‖ | ‖ lvert | rvert | lVert ‖ rVert ‖ backslash \\
  langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrace { rbrace } lbrack [ rbrack ] { { } } # # % % & & $ $ _ _`);
const BIG = pairs(`sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigsqcup ⨆ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂
  bigodot ⨀ biguplus ⨄ int ∫ iint ∬ iiint ∭ oint ∮ oiint ∯`);
const NAMES = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp deg dim hom ker
  arg Pr lim liminf limsup max min sup inf det gcd argmax argmin`.split(/\s+/));
const LIMITS = new Set('lim liminf limsup max min sup inf det gcd argmax argmin Pr'.split(' '));
const SPACES = new Map([[',', .17], [':', .22], ['>', .22], [';', .28], ['!', -.17], [' ', .3], ['quad', 1],
  ['qquad', 2], ['thinspace', .17], ['enspace', .5]]);
const ACCENTS = pairs(`hat ^ widehat ^ check ˇ tilde ~ widetilde ~ acute ´ grave \` dot ˙ ddot ¨ breve ˘ bar ¯ vec →
  overline ¯ overrightarrow → overleftarrow ← overbrace ⏞ mathring ˚`);
const BELOW = pairs('underline _ underbrace ⏟ underrightarrow →');
const ARROWS = pairs('xrightarrow → xleftarrow ← xRightarrow ⇒ xLeftarrow ⇐ xmapsto ↦ xleftrightarrow ↔');
const BIGGER = new Map([['big', 1.2], ['Big', 1.8], ['bigg', 2.4], ['Bigg', 3]]);
const FENCES = {pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖',
  cases: '{', rcases: ' }', dcases: '{'};
const TABLES = new RegExp('^(small|[pbBvV])?matrix$|^[dr]?cases$|^(array|aligned|gathered|split|alignedat|subarray)$' +
  '|^(align|gather|equation|alignat|multline|eqnarray)\\*?$');
const EQUATIONS = /^(align|alignat|aligned|alignedat|split|eqnarray)/; // columns in pairs, left and right of a sign

// Where a letter lies in the fonts of Unicode: [of A, of a, of 0], and those that were there before.
const FONTS = {
  bb: [0x1d538, 0x1d552, 0x1d7d8, pairs('C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ')],
  cal: [0x1d49c, 0x1d4b6, 0, pairs('B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ')],
  frak: [0x1d504, 0x1d51e, 0, pairs('C ℭ H ℌ I ℑ R ℜ Z ℨ')],
  bf: [0x1d400, 0x1d41a, 0x1d7ce, new Map()], bi: [0x1d468, 0x1d482, 0x1d7ce, new Map()],
  sf: [0x1d5a0, 0x1d5ba, 0x1d7e2, new Map()], tt: [0x1d670, 0x1d68a, 0x1d7f6, new Map()],
};
const FONT_OF = pairs(`mathbb bb mathcal cal mathscr cal mathfrak frak mathbf bf boldsymbol bi bm bi mathsf sf mathtt
  tt mathrm rm mathit it mathnormal it`);
const TEXTS_OF = new Set('text textrm textnormal textbf textit textsf texttt mbox hbox'.split(' '));

function inFont(c, font) {
  const f = FONTS[font];
  if (!f) return c;
  const base = /[A-Z]/.test(c) ? f[0] - 65 : /[a-z]/.test(c) ? f[1] - 97 : /[0-9]/.test(c) && f[2] ? f[2] - 48 : 0;
  return f[3].get(c) ?? (base ? String.fromCodePoint(base + c.codePointAt(0)) : c);
}

class TooDeep extends Error {}

/** Reads one formula: list() to its end gives the elements of a row. */
class Formula {
  constructor(text) {
    this.tokens = text.match(/\\(?:operatorname\*|[A-Za-z]+|[^]|$)|\d+(?:[.,]\d+)*|\s+|[^]/gu) || [];
    this.at = 0;
    this.depth = 0;
    this.font = null;
  }
  peek() {
    while (this.at < this.tokens.length && /^\s/.test(this.tokens[this.at])) this.at++;
    return this.tokens[this.at];
  }
  next() { const t = this.peek(); this.at++; return t; }
  deeper(read) {
    if (++this.depth > MAX_NESTING) throw new TooDeep();
    const font = this.font, result = read();
    this.font = font;
    this.depth--;
    return result;
  }
  /** Elements up to a token that ends them, which stays. */
  list(ends = t => t === '}') {
    const out = [];
    for (let t = this.peek(); t !== undefined && !ends(t); t = this.peek()) out.push(this.scripted());
    return out;
  }
  row(children) { return children.length === 1 ? children[0] : math('mrow', {}, children); }
  /** What a command takes: a group or one thing. */
  argument() {
    return this.deeper(() => {
      const t = this.peek();
      if (t === undefined) return math('mrow');
      if (/^\d./.test(t)) { this.tokens[this.at] = t.slice(1); return math('mn', {}, t[0]); } // \frac12
      if (t !== '{') return this.atom();
      this.next();
      const inner = this.row(this.list());
      this.next();
      return inner;
    });
  }
  /** The text of a group as it is written. */
  raw() {
    if (this.peek() !== '{') return this.next() ?? '';
    let text = '';
    this.at++;
    for (let open = 1; this.at < this.tokens.length; text += this.tokens[this.at++]) {
      open += {'{': 1, '}': -1}[this.tokens[this.at]] ?? 0;
      if (open === 0) { this.at++; break; }
    }
    return text;
  }
  optional(read) {
    if (this.peek() !== '[') return null;
    this.next();
    const inner = this.deeper(read);
    this.next();
    return inner;
  }
  scripted() {
    const base = this.atom();
    let below = null, above = null, under = !!base.under;
    for (let t = this.peek(); ; t = this.peek()) {
      if (t === '\\limits') { this.next(); under = true; } else if (t === '\\nolimits') { this.next(); under = false; }
      else if (t === '_' && !below) { this.next(); below = this.argument(); }
      else if (t === '^' && !above) { this.next(); above = this.argument(); }
      else if (t === "'" && !above) above = this.primes();
      else break;
    }
    const tags = under ? ['', 'munder', 'mover', 'munderover'] : ['', 'msub', 'msup', 'msubsup'];
    const tag = tags[(below ? 1 : 0) + (above ? 2 : 0)];
    return tag ? math(tag, {}, base, below || [], above || []) : base;
  }
  primes() {
    let text = '';
    for (; this.peek() === "'"; this.next()) text += '′';
    return math('mo', {}, text);
  }
  atom() {
    const t = this.next();
    if (t === '{') { this.at--; return this.argument(); }
    if (t[0] === '\\' && t.length > 1) return this.command(t.slice(1));
    if (/^\d/.test(t)) return math('mn', {}, [...t].map(c => inFont(c, this.font)).join(''));
    if (/^\p{L}/u.test(t)) return math('mi', this.font === 'rm' ? {mathvariant: 'normal'} : {}, inFont(t, this.font));
    if (t === '_' || t === '^') { this.at--; return math('mrow'); } // a script of nothing
    if (t === '~') return math('mspace', {width: '.3em'});
    if (t === '&') return math('mtext', {}, '&');
    return this.sign({'-': '−', '*': '∗'}[t] ?? t);
  }
  /** As tall as it is: what grows is a delimiter. Bars may open or close, so that they have no blanks of their own. */
  sign(t) { return math('mo', {stretchy: 'false', ...(/^[|‖]$/.test(t) ? {lspace: '0', rspace: '0'} : {})}, t); }
  command(name) {
    const plain = name.replace('*', '');
    const bold = /^b[fi]$/.test(this.font) ? {class: 'textbf'} : {};
    if (LETTERS.has(name)) return math('mi', bold, LETTERS.get(name));
    if (CAPITALS.has(name)) return math('mi', {mathvariant: 'normal', ...bold}, CAPITALS.get(name));
    if (OPERATORS.has(name)) return this.sign(OPERATORS.get(name));
    if (BIG.has(name)) return this.withLimits(math('mo', {}, BIG.get(name)), !BIG.get(name).match(/[∫-∯]/));
    if (NAMES.has(name)) return this.name(name.replace(/^(lim|arg)(?=.)/, '$1\u2009'), LIMITS.has(name));
    if (SPACES.has(name)) return math('mspace', {width: SPACES.get(name) + 'em'});
    if (FONT_OF.has(name)) return this.deeper(() => { this.font = FONT_OF.get(name); return this.argument(); });
    if (TEXTS_OF.has(name)) return this.text(name, this.raw());
    if (ACCENTS.has(name)) return this.marked('mover', {accent: 'true'}, name, ACCENTS.get(name));
    if (BELOW.has(name)) return this.marked('munder', {}, name, BELOW.get(name));
    if (ARROWS.has(name)) return this.arrow(ARROWS.get(name));
    const big = /^(big|Big|bigg|Bigg)[lrm]?$/.exec(name);
    if (big) return this.delimiter({minsize: BIGGER.get(big[1]) + 'em', maxsize: BIGGER.get(big[1]) + 'em'});
    const read = Object.hasOwn(Formula.COMMANDS, plain) && Formula.COMMANDS[plain];
    return read ? read(this, name) : math('mtext', {class: 'unknown'}, '\\' + name);
  }
  /** A function: an operator, which has blanks around it, and limits below it where there is room. */
  name(text, under) {
    const attributes = {form: 'prefix', lspace: '.1em', rspace: this.peek() === '(' ? '0' : '.17em'};
    return this.withLimits(math('mo', {...attributes, ...(under ? {movablelimits: 'true'} : {})}, text), under);
  }
  text(name, raw) {
    return math('mtext', {class: name}, raw.replace(/\\([%$&#_{} ])/g, '$1').replace(/^\s+|\s+$/g, '\u00a0'));
  }
  marked(tag, attributes, name, mark) {
    const sign = math('mo', {stretchy: String(/^(wide|over|under)/.test(name))}, mark);
    return this.withLimits(math(tag, attributes, this.argument(), sign), /brace$/.test(name));
  }
  withLimits(e, under) { e.under = under; return e; }
  arrow(sign) {
    const below = this.optional(() => this.row(this.list(t => t === ']'))), above = this.argument();
    const mo = math('mo', {stretchy: 'true'}, sign);
    return below ? math('munderover', {}, mo, below, above) : math('mover', {}, mo, above);
  }
  delimiter(attributes) {
    const t = this.next() ?? '.', sign = t === '.' ? '' : t.length > 1 ? OPERATORS.get(t.slice(1)) ?? t : t;
    return math('mo', {stretchy: 'true', ...attributes}, sign);
  }
  fenced() {
    const open = this.delimiter({fence: 'true', form: 'prefix'});
    return this.deeper(() => {
      const inner = this.list(t => t === '\\right' || t === '}');
      const closed = this.peek() === '\\right' && this.next();
      return math('mrow', {}, open, inner, closed ? this.delimiter({fence: 'true', form: 'postfix'}) : []);
    });
  }
  fraction(style, line = true) {
    const f = math('mfrac', line ? {} : {linethickness: '0'}, this.argument(), this.argument());
    return style === null ? f : math('mstyle', {displaystyle: String(style), scriptlevel: '0'}, f);
  }
  /** Rows of cells, up to \end or the end. */
  table(name) {
    if (/^(array|alignat|alignedat|subarray)/.test(name)) { if (this.peek() === '[') this.raw(); this.raw(); }
    const rows = [];
    this.deeper(() => {
      for (let t = '\\\\'; t === '\\\\';) {
        const cells = [];
        do cells.push(math('mtd', {}, this.list(e => e === '&' || e === '\\\\' || e === '\\end' || e === '}')));
        while (this.peek() === '&' && this.next());
        t = this.peek();
        if (t === '\\\\') this.next();
        if (t === '\\\\' && this.tokens[this.at] === '[') this.optional(() => this.list(e => e === ']')); // a distance
        if (t === '\\\\' || !rows.length || cells.length > 1 || cells[0].firstChild) rows.push(math('mtr', {}, cells));
      }
    });
    return math('mtable', {class: EQUATIONS.test(name) ? 'equations' : /cases/.test(name) ? 'cases' : 'matrix',
      ...(EQUATIONS.test(name) || name === 'dcases' ? {displaystyle: 'true'} : {})}, rows);
  }
  environment() {
    const name = this.raw();
    if (!TABLES.test(name)) return math('mtext', {class: 'unknown'}, `\\begin{${name}}`);
    const table = this.table(name), fences = FENCES[name];
    if (this.peek() === '\\end') { this.next(); this.raw(); }
    if (!fences) return table;
    const fence = (sign, form) => math('mo', {stretchy: 'true', fence: 'true', form}, sign.trim());
    return math('mrow', {}, fence(fences[0], 'prefix'), table, fences[1] ? fence(fences[1], 'postfix') : []);
  }
  /** A whole formula; \\ outside of a table begins a line of one. */
  whole() {
    const out = [];
    if (this.tokens.includes('\\\\') && !this.tokens.includes('\\begin')) out.push(this.table('aligned'));
    return [...out, ...this.list(() => false)];
  }
}

const nothing = () => math('mrow');
Formula.COMMANDS = {
  frac: f => f.fraction(null), dfrac: f => f.fraction(true),
  tfrac: f => f.fraction(false), cfrac: f => f.fraction(true),
  binom: f => math('mrow', {}, math('mo', {}, '('), f.fraction(null, false), math('mo', {}, ')')),
  sqrt: f => {
    const root = f.optional(() => f.row(f.list(t => t === ']')));
    return root ? math('mroot', {}, f.argument(), root) : math('msqrt', {}, f.argument());
  },
  left: f => f.fenced(), right: f => f.delimiter({}), middle: f => f.delimiter({fence: 'true'}),
  begin: f => f.environment(),
  end: f => math('mtext', {class: 'unknown'}, `\\end{${f.raw()}}`),
  operatorname: (f, name) => f.name(f.raw().replace(/\\[,;: ]/g, '\u2009'), name.endsWith('*')),
  mod: f => math('mrow', {}, math('mspace', {width: '1em'}), math('mi', {}, 'mod')),
  pmod: f => math('mrow', {}, math('mspace', {width: '1em'}), f.sign('('), math('mi', {}, 'mod'),
    math('mspace', {width: '.3em'}), f.argument(), f.sign(')')),
  overset: f => { const above = f.argument(); return math('mover', {}, f.argument(), above); },
  stackrel: f => { const above = f.argument(); return math('mover', {}, f.argument(), above); },
  underset: f => { const below = f.argument(); return f.withLimits(math('munder', {}, f.argument(), below), false); },
  substack: f => { const open = f.next(), t = f.table('gathered'); if (open === '{') f.next(); return t; },
  boxed: f => math('mrow', {class: 'boxed'}, f.argument()), fbox: f => math('mtext', {class: 'boxed'}, f.raw()),
  phantom: f => math('mphantom', {}, f.argument()),
  color: f => { f.raw(); return nothing(); }, textcolor: f => { f.raw(); return f.argument(); },
  not: f => f.deeper(() => { const e = f.peek() === undefined ? math('mo') : f.atom(); e.append('\u0338'); return e; }),
  tag: f => math('mtext', {class: 'tag'}, ` (${f.raw()})`), label: f => { f.raw(); return nothing(); },
  displaystyle: f => math('mstyle', {displaystyle: 'true'},
    f.deeper(() => f.list(t => ['}', '&', '\\\\', '\\right', '\\end'].includes(t)))),
  textstyle: nothing, scriptstyle: nothing, nonumber: nothing, notag: nothing, hline: nothing, limits: nothing,
  nolimits: nothing,
  '\\': nothing,
};

/** The element of a formula; display: on a line of its own. Its source is what a screen reader may read instead. */
function formulaElement(text, display) {
  try {
    if (text.length > MAX_FORMULA) throw new TooDeep();
    const f = new Formula(text), e = math('math', display ? {display: 'block'} : {}, math('mrow', {}, f.whole()));
    e.setAttribute('alttext', text.trim());
    return e;
  } catch (e) {
    if (!(e instanceof TooDeep)) throw e;
    return el('code', {}, text);
  }
}
