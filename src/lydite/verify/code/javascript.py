"""One function call in JavaScript: what ``guest/call.py`` is for Python, run by Node."""

JAVASCRIPT_CALL = """\
const fs = require('fs'), vm = require('vm');
process.stdout.write = () => true; console.log = console.info = console.debug = () => {};
const asked = JSON.parse(fs.readFileSync(0, 'utf8'));
const write = (text) => { const b = Buffer.from(text); let n = 0;
  while (n < b.length) n += fs.writeSync(1, b, n); };
const read = (t) => {
  if (Array.isArray(t)) return t.map(read);
  if (t === null || typeof t !== 'object') return t;
  const [tag] = Object.keys(t), inside = t[tag];
  if (tag === '$dict') {
    if (inside.every(([k]) => typeof k === 'string'))
      return Object.fromEntries(inside.map(([k, v]) => [k, read(v)]));
    return new Map(inside.map(([k, v]) => [read(k), read(v)]));
  }
  if (tag === '$int') return BigInt(inside);
  if (tag === '$float') return {nan: NaN, inf: Infinity, '-inf': -Infinity}[inside];
  if (tag === '$set' || tag === '$frozenset') return new Set(inside.map(read));
  if (tag === '$bytes') return Uint8Array.from(Buffer.from(inside, 'hex'));
  return inside.map(read);
};
const spell = (v, depth = 0) => {
  if (depth > 60) throw new TypeError('unspelled: a value nested more than 60 deep');
  if (v === null || v === undefined) return null;
  if (typeof v === 'boolean' || typeof v === 'string') return v;
  if (typeof v === 'bigint') return {'$int': (v < 0n ? '-0x' : '0x') +
    (v < 0n ? -v : v).toString(16)};
  if (typeof v === 'number') return Number.isFinite(v) ? v :
    {'$float': Number.isNaN(v) ? 'nan' : v > 0 ? 'inf' : '-inf'};
  if (Array.isArray(v)) return Array.from(v, (x) => spell(x, depth + 1));
  if (v instanceof Set) return {'$set': Array.from(v, (x) => spell(x, depth + 1))};
  if (v instanceof Map)
    return {'$dict': Array.from(v, ([k, x]) => [spell(k, depth + 1), spell(x, depth + 1)])};
  if (v instanceof Uint8Array) return {'$bytes': Buffer.from(v).toString('hex')};
  if (typeof v === 'object' && [Object.prototype, null].includes(Object.getPrototypeOf(v)))
    return {'$dict': Object.entries(v).map(([k, x]) => [k, spell(x, depth + 1)])};
  throw new TypeError('unspelled: ' + typeof v + ', which is no plain data');
};
(async () => {
  const reply = {nonce: asked.nonce};
  try {
    global.require = require; global.module = {exports: {}}; global.exports = module.exports;
    vm.runInThisContext(fs.readFileSync('main.js', 'utf8'), {filename: 'main.js'});
    let f;
    try { f = vm.runInThisContext(asked.name); } catch (e) { f = module.exports[asked.name]; }
    if (typeof f !== 'function') reply.missing = true;
    else reply.value = spell(await f(...asked.args.map(read)));
  } catch (e) {
    const text = String(e && e.message !== undefined ? e.message : e);
    if (text.startsWith('unspelled: ')) reply.unspelled = text.slice(11);
    else { reply.raised = [String((e && e.name) || 'Error')]; reply.message = text.slice(0, 500); }
  }
  write(JSON.stringify(reply)); process.exit(0);
})();
"""
