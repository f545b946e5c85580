// Signs in with a passkey, makes one, or signs a yes: the form's data say which, and its fields take
// what the authenticator gives.
const form = document.querySelector('#passkey');

const encode = (b) => btoa(String.fromCharCode(...new Uint8Array(b ?? []))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
const decode = (t) => Uint8Array.from(atob(t.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));

function say(text) {
  const note = document.querySelector('#passkey-note');
  if (note) note.textContent = text;
}

// load gets a page as a document.
function load(method, address, body) {
  return new Promise((resolve, reject) => {
    const x = new XMLHttpRequest();
    x.open(method, address);
    x.responseType = 'document';
    x.onload = () => resolve(x);
    x.onerror = x.ontimeout = () => reject(new Error('palyrad doesn’t answer.'));
    x.timeout = 15000;
    x.send(body);
  });
}

// ask gets a challenge, in a form such as this one: each is good once, for two minutes. That of a yes
// follows from the yes, and is there.
async function ask() {
  if (!form.dataset.ask) return form.dataset;
  const q = (await load('GET', form.dataset.ask)).response?.querySelector('#passkey')?.dataset;
  if (!q?.challenge) throw new Error('palyrad has no challenge for this page now: reload it.');
  return q;
}

const credentials = (ids) => (ids ?? '').split(' ').filter(Boolean).map((id) => ({ type: 'public-key', id: decode(id) }));

async function sign(q) {
  const c = await navigator.credentials.get({ publicKey: {
    challenge: decode(q.challenge), rpId: q.rp, allowCredentials: credentials(q.known), userVerification: 'required', timeout: 60000 } });
  const r = c.response;
  return { id: c.rawId, data: r.authenticatorData, client: r.clientDataJSON, signature: r.signature, user: r.userHandle };
}

async function make(q) {
  const c = await navigator.credentials.create({ publicKey: {
    challenge: decode(q.challenge),
    rp: { id: q.rp, name: 'Palyra' },
    user: { id: decode(q.user), name: q.name, displayName: q.name },
    pubKeyCredParams: [{ type: 'public-key', alg: -7 }],
    authenticatorSelection: { residentKey: 'required', requireResidentKey: true, userVerification: 'required' },
    excludeCredentials: credentials(q.known),
    attestation: 'none',
    timeout: 60000,
  } });
  const r = c.response;
  return { id: c.rawId, key: r.getPublicKey(), data: r.getAuthenticatorData(), client: r.clientDataJSON };
}

function why(e) {
  switch (e.name) {
    case 'NotAllowedError': return 'No passkey was given.';
    case 'InvalidStateError': return 'There is a passkey of yours for this palyrad already.';
    case 'NotSupportedError': return 'This authenticator makes no passkeys that palyrad takes (ES256).';
  }
  return e.message;
}

function fill(to, got) {
  for (const [name, value] of Object.entries(got)) {
    if (to.elements[name]) to.elements[name].value = encode(value);
  }
}

form?.addEventListener('submit', async (event) => {
  event.preventDefault();
  const button = form.querySelector('button');
  button.disabled = true;
  say('');
  try {
    const q = await ask();
    const got = await (q.user ? make : sign)(q);
    if (form.elements.challenge) form.elements.challenge.value = q.challenge;
    fill(form, got);
    form.submit();
  } catch (e) {
    say(why(e));
  }
  button.disabled = false;
});

if (form && window.PublicKeyCredential) {
  const here = location.origin === form.dataset.origin;
  (here ? form : document.querySelector('#elsewhere')).hidden = false;
}

// A yes that takes a passkey is signed at once: palyrad answers the form with a page whose form has
// the same answer and its challenge. Without a signature that page is shown, and says more.
document.addEventListener('submit', async (event) => {
  const from = event.target, yes = event.submitter;
  if (!from.matches('form[data-signs]') || yes?.value !== 'yes' || !window.PublicKeyCredential) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(from, yes));
  say('');
  try {
    const x = await load('POST', from.action, body);
    const next = x.response?.querySelector('#passkey');
    if (x.responseURL !== from.action) { // taken without one
      location.assign(x.responseURL);
      return;
    }
    if (next?.dataset.origin !== location.origin) {
      from.removeAttribute('data-signs');
      from.requestSubmit(yes);
      return;
    }
    fill(next, await sign(next.dataset));
    document.body.append(document.adoptNode(next));
    next.submit();
  } catch (e) {
    say(why(e));
  }
});
