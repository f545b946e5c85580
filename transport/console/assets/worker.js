// Keeps the console's looks, and a page for when palyrad doesn't answer. It keeps no page of palyrad's
// and makes no request of its own for one: the browser's own request goes out (navigation preload), so
// its cookies and its origin are those that it would have without this worker.
const offline = '{{asset "offline.html"}}';
const shell = {{shell}};
const name = 'shell ' + shell.join(' ');

addEventListener('install', (e) => {
  e.waitUntil(caches.open(name).then((c) => c.addAll(shell)).then(() => skipWaiting()));
});

addEventListener('activate', (e) => {
  e.waitUntil((async () => {
    for (const k of await caches.keys()) if (k !== name) await caches.delete(k);
    await registration.navigationPreload.enable();
    await clients.claim();
  })());
});

async function page(e) {
  try {
    return await e.preloadResponse ?? Response.error();
  } catch {
    return await caches.match(offline) ?? Response.error();
  }
}

async function kept(e) {
  return await caches.match(e.request) ?? fetch(e.request);
}

addEventListener('fetch', (e) => {
  const at = new URL(e.request.url);
  if (at.origin !== location.origin || e.request.method !== 'GET') return;
  if (e.request.mode === 'navigate') e.respondWith(page(e));
  else if (shell.includes(at.pathname)) e.respondWith(kept(e));
});
