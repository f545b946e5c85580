// Runs sigstore-js over conformance/vectors/receipt, receipt-run and receipt-planted: it must accept what the
// header says "sigstore: verified" of and refuse what it says "refused" of.
//
//   node vectors.mjs        exit status 0 if it does
import { readdirSync, readFileSync } from 'node:fs';
import { verifierFor, verify } from './receipt.mjs';

const count = { verified: 0, refused: 0 };
let failed = 0;
for (const folder of ['receipt', 'receipt-run', 'receipt-planted']) {
  const dir = new URL(`../vectors/${folder}/`, import.meta.url);
  const verifier = verifierFor(new URL('trust/trusted_root.json', dir), new URL('trust/att.pub', dir));
  for (const name of readdirSync(dir).filter((n) => n.endsWith('.txt'))) {
    const text = readFileSync(new URL(name, dir), 'utf8');
    const cut = text.indexOf('\n\n');
    const want = /^sigstore: (verified|refused|either)$/m.exec(text.slice(0, cut))?.[1];
    let got = 'verified';
    let why = '';
    try {
      verify(text.slice(cut + 2), verifier);
    } catch (e) {
      got = 'refused';
      why = `: ${e.message}`;
    }
    count[got]++;
    if (want !== got && want !== 'either') {
      failed++;
      console.error(`${folder}/${name}: ${got} by sigstore-js${why}; want ${want}`);
    }
  }
}
console.log(`sigstore-js: ${count.verified} verified, ${count.refused} refused, ${failed} not as expected`);
process.exit(failed || !count.verified || !count.refused ? 1 : 0);
