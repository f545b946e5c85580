// Replaces the page's main part when it has changed. palyrad's feed says when to look: of the pages
// of a browser one holds it, and tells the others. Without it each page asks once a second. A part
// that the person is about to change stays, and a note says that there is something new.
// ms: between looks without the feed, with it, and when there's no answer; and how long the feed may
// be silent
const quick = 1000, slow = 30000, most = 10000, silent = 50000;
const main = document.querySelector('main');
const note = document.querySelector('#note');
const topics = new Set(document.body.dataset.topics.split(' '));
let tag = null, dirty = false;

main.addEventListener('input', () => { dirty = true; });

function say(text) {
  if (note.textContent !== text) note.textContent = text;
}

// fetchPage gets a page as a document: its scripts don't run and no text becomes one.
function fetchPage(at, tag) {
  return new Promise((resolve, reject) => {
    const x = new XMLHttpRequest();
    x.open('GET', at);
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
  if (x.status === 429 || x.status >= 500) throw new Error('no page');
  if (x.status === 304 || !x.response) return;
  const first = tag === null;
  tag = x.getResponseHeader('ETag');
  document.title = x.response.title;
  for (const id of ['count', 'banner']) replace(document.getElementById(id), x.response.getElementById(id));
  counted();
  const other = x.response.querySelector('main');
  if (!other || first && other.textContent === main.textContent) return;
  const part = written(main), theirs = written(other);
  if (part && part.dataset.at === theirs?.dataset.at) theirs.replaceWith(x.response.importNode(part, true)); // follow's is newer
  if (other.isEqualNode(main)) return;
  if (dirty || main.contains(document.activeElement) && document.activeElement.matches('input, textarea, select')) {
    const [was, now] = [main, other].map((m) => m.querySelector('h1')?.textContent);
    say((was === now ? 'This page has changed.' : 'This page has changed: ' + now + '.') + ' Reload it before you answer.');
    return;
  }
  const open = new Set([...main.querySelectorAll('details[open][id]')].map((d) => d.id));
  const focus = main.contains(document.activeElement) ? document.activeElement.id : '';
  main.replaceChildren(...copies(other));
  for (const id of open) main.querySelector('#' + CSS.escape(id))?.setAttribute('open', '');
  if (focus) document.getElementById(focus)?.focus();
  say('');
  follow();
}

function copies(of) {
  return [...of.childNodes].map((n) => document.importNode(n, true));
}

function replace(have, other) {
  if (have && other && have.textContent !== other.textContent) have.replaceChildren(...copies(other));
}

// follow shows what a running step writes: a page of its own has the newest of it, and no more than
// fits. It holds no connection: a browser has six for a host, and the feed takes one. What the person
// has selected stays.
let following = false;

function written(main) {
  return main.querySelector('#output[data-at]');
}

async function follow() {
  if (following) return;
  following = true;
  for (let part, gap = quick / 4; (part = written(main)) && !document.hidden;) {
    try {
      const held = getSelection(), x = await fetchPage(part.dataset.at, part.tag);
      gap = Math.min(2 * gap, 2 * quick);
      if (x.status === 200 && x.response && (held.isCollapsed || !part.contains(held.anchorNode))) {
        part.tag = x.getResponseHeader('ETag');
        if (fill(part, x.response)) gap = quick / 4;
      }
    } catch {
      gap = 2 * quick; // look says so
    }
    await new Promise((go) => setTimeout(go, gap));
  }
  following = false;
}

function fill(part, page) {
  let grew = false;
  for (const have of part.querySelectorAll('[id]')) {
    const text = page.getElementById(have.id)?.textContent ?? have.textContent;
    if (have.textContent !== text) have.textContent = text, grew = true;
  }
  return grew;
}

// look asks for the page, one request at a time. One that is wanted meanwhile comes after as long a
// pause as the last took, or a second where nobody looks.
let looking = false, again = false, settle = false, down = false, wait = quick, timer = 0;

async function look() {
  again = true;
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  while (again) {
    again = false;
    const begun = performance.now();
    try {
      take(await fetchPage(location.href, tag));
      down = false;
      wait = quick;
      if (note.textContent.startsWith('palyrad')) say('');
    } catch {
      down = true;
      wait = Math.min(2 * wait, most);
      say('palyrad doesn’t answer. This page is as it was, and looks again by itself.');
      break;
    }
    if (again) await new Promise((go) => setTimeout(go, document.hidden ? quick : performance.now() - begun));
  }
  looking = false;
  rest();
}

// rest plans the next look. A second after a notice there is one more: what palyrad only remembers,
// such as the count of what waits, may be later than what it writes down.
function rest() {
  clearTimeout(timer);
  const idle = fed ? slow : document.hidden ? most : quick;
  timer = setTimeout(look, down ? wait : settle ? quick : idle);
  settle = false;
}

document.addEventListener('visibilitychange', () => {
  wait = quick;
  seen();
  if (!document.hidden) { look(); follow(); }
});
addEventListener('pageshow', (e) => { if (e.persisted) location.reload(); });

// The feed. The page that has the lock has it; the next one gets the lock when that page goes.
const channel = window.BroadcastChannel ? new BroadcastChannel('palyra-feed') : null;
let fed = false, leads = false, back = quick;

function tell(m) {
  channel?.postMessage(m);
  hear(m);
}

function hear(m) {
  if (m.ask) {
    if (leads) channel.postMessage({ fed });
  } else if (m.topics) {
    if (!m.topics.some((t) => topics.has(t))) return;
    settle = true;
    look();
  } else if (m.fed !== fed) {
    fed = m.fed;
    look();
  }
}

function lead() {
  const source = new EventSource('/console/feed');
  let late = 0;
  leads = true;
  const part = () => {
    source.close();
    clearTimeout(late);
    tell({ fed: false });
    setTimeout(lead, back * (0.5 + Math.random() / 2));
    back = Math.min(2 * back, most);
  };
  const alive = () => {
    clearTimeout(late);
    late = setTimeout(part, silent);
  };
  source.onopen = () => { back = quick; alive(); tell({ fed: true }); };
  source.addEventListener('beat', alive);
  source.addEventListener('look', (e) => { alive(); tell({ topics: e.data.split(' ') }); });
  source.onerror = part;
}

if (channel && navigator.locks) {
  channel.onmessage = (e) => hear(e.data);
  channel.postMessage({ ask: true });
  navigator.locks.request('palyra-feed', () => { lead(); return new Promise(() => {}); });
} else {
  lead();
}

// A notification says how many questions wait, where no page of the console is in sight. A page in
// sight has a share of a lock for as long.
const button = document.querySelector('#tell');
let count = waiting(), notice = null, unsee = null;

function waiting() {
  return Number(document.querySelector('#count')?.textContent) || 0;
}

function seen() {
  if (!document.hidden) {
    notice?.close();
    if (unsee) return;
    const over = new Promise((end) => { unsee = end; });
    navigator.locks?.request('palyra-seen', { mode: 'shared' }, () => over);
  } else {
    unsee?.();
    unsee = null;
  }
}

async function counted() {
  const before = count;
  count = waiting();
  if (count === 0) notice?.close();
  if (count <= before || !leads || !document.hidden || !window.Notification || Notification.permission !== 'granted') return;
  const locks = navigator.locks ? (await navigator.locks.query()).held : [];
  if (locks.some((l) => l.name === 'palyra-seen')) return;
  try {
    notice = new Notification('Palyra', { body: count === 1 ? 'A question waits for an answer.' : count + ' questions wait for an answer.', tag: 'palyra-questions', renotify: true });
    notice.onclick = () => { window.focus(); notice.close(); };
  } catch { /* a browser that has them for installed pages alone */ }
}

function offer() {
  if (button) button.hidden = !window.Notification || Notification.permission !== 'default';
}

button?.addEventListener('click', async () => {
  await Notification.requestPermission();
  offer();
});
offer();
seen();
rest();
follow();
