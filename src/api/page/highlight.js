// highlight.js - a little colour in code: comments, strings, numbers and the words that most languages share. It need
// not be right, only linear and never anything but text in spans.

const MAX_HIGHLIGHT = 20000; // an unclosed comment makes the pattern look to the end each time
const KEYWORDS = new Set((
  'abstract and as async await auto bool boolean break case catch char class const continue def default defer del ' +
  'do double elif else end enum except export extends extern false False final finally fn for from func function go ' +
  'goto if impl implements import in include inline int interface is lambda let local long match mod module mut ' +
  'namespace new nil None not null nullptr or package pass pub private protected public raise return self short ' +
  'signed sizeof static struct super switch template then this throw true True try type typedef typeof union unless ' +
  'unsigned until use using var virtual void volatile when where while with yield SELECT FROM WHERE INSERT INTO ' +
  'UPDATE DELETE CREATE TABLE JOIN LEFT ON GROUP BY ORDER LIMIT AND OR NOT NULL AS SET VALUES').split(' '));
const HASH_COMMENTS = new RegExp('^(py|python|sh|bash|shell|zsh|console|rb|ruby|r|pl|perl|ya?ml|toml|ini|conf|make|' +
  'makefile|dockerfile|elixir|julia|jl|nix)$', 'i');
const PROSE = /^(|te?xt|text|md|markdown|output|log|diff)$/i;
const TOKEN = new RegExp([
  /(\/\*[^]*?\*\/|\/\/.*|--[ \t].*|#.*)/, /("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)/,
  /(\b\d[\w.]*)/, /([A-Za-z_]\w*)/,
].map(r => r.source).join('|'), 'g');

function highlight(code, text, lang) {
  if (PROSE.test(lang) || text.length > MAX_HIGHLIGHT) { code.textContent = text; return; }
  const hash = HASH_COMMENTS.test(lang), c = /^(c|cc|cpp|c\+\+|h|hpp|cuda|cu)$/i.test(lang),
      sql = /^(sql|lua|haskell|hs|ada|vhdl)$/i.test(lang);
  const pattern = new RegExp(TOKEN.source, 'g');
  let plain = '', m, at = 0;
  const put = (cls, s) => { if (plain) code.append(plain); plain = ''; code.append(el('span', {class: cls}, s)); };
  while ((m = pattern.exec(text))) {
    plain += text.slice(at, m.index);
    at = pattern.lastIndex;
    if (m[1] && m[1][0] === '#' && !hash) {
      if (c) {
        const directive = /^#\s*\w*/.exec(m[1])[0];
        put('t-kw', directive);
        at = pattern.lastIndex = m.index + directive.length;
      }
      else { plain += '#'; at = pattern.lastIndex = m.index + 1; }
    } else if (m[1] && ((m[1][0] === '/' && (hash || sql)) || (m[1][0] === '-' && !sql))) {
      plain += m[1][0];
      at = pattern.lastIndex = m.index + 1;
    } else if (m[1]) put('t-com', m[1]);
    else if (m[2]) put('t-str', m[2]);
    else if (m[3]) put('t-num', m[3]);
    else if (KEYWORDS.has(m[4])) put('t-kw', m[4]);
    else plain += m[4];
  }
  code.append(plain + text.slice(at));
}
