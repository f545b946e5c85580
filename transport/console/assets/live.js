// Replaces the page's main part when it has changed. A part that the person is about to change stays,
// and a note says that there is something new.
const every = 1000, most = 30000;
const main = document.querySelector('main');
const note = document.querySelector('#note');
let tag = null, wait = every, dirty = false;

main.addEventListener('input', () => { dirty = true; });

function say(text) {
  if (note.textContent !== text) note.textContent = text;
}

// fetchPage gets the page as a document: its scripts don't run and no text becomes one.
function fetchPage() {
  return new Promise((resolve, reject) => {
    const x = new XMLHttpRequest();
    x.open('GET', location.href);
    x.responseType = 'document';
    x.setRequestHeader('Palyra-Live', '1');
    if (tag) x.setRequestHeader('If-None-Match', tag);
    x.onload = () => resolve(x);
    x.onerror = x.ontimeout = () => reject(new Error('no answer'));
    x.timeout = 15000;
    x.send();
  });
}

function take(x) {
  if (x.status === 401) { location.reload(); return; }
  if (x.status === 304 || !x.response) return;
  const first = tag === null;
  tag = x.getResponseHeader('ETag');
  const other = x.response.querySelector('main');
  if (!other || first && other.textContent === main.textContent) return;
  if (dirty || main.contains(document.activeElement) && document.activeElement.matches('input, textarea, select')) {
    say('This page has changed. Reload it before you answer.');
    return;
  }
  const open = new Set([...main.querySelectorAll('details[open][id]')].map((d) => d.id));
  const focus = main.contains(document.activeElement) ? document.activeElement.id : '';
  main.replaceChildren(...[...other.childNodes].map((n) => document.importNode(n, true)));
  for (const id of open) main.querySelector('#' + CSS.escape(id))?.setAttribute('open', '');
  if (focus) document.getElementById(focus)?.focus();
  document.title = x.response.title;
  const n = x.response.querySelector('#count'), have = document.querySelector('#count');
  if (n && have) have.textContent = n.textContent;
  say('');
}

async function look() {
  if (document.visibilityState === 'visible') {
    try {
      take(await fetchPage());
      wait = every;
      if (note.textContent.startsWith('palyrad')) say('');
    } catch {
      wait = Math.min(2 * wait, most);
      say('palyrad doesn’t answer. This page is as it was.');
    }
  }
  setTimeout(look, wait);
}

document.addEventListener('visibilitychange', () => { wait = every; });
setTimeout(look, every);
