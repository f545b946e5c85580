// Signs in with a passkey, or makes one: the form's data say which, and its fields take what the
// authenticator gives.
const form = document.querySelector('#passkey');
const note = document.querySelector('#passkey-note');

const encode = (b) => btoa(String.fromCharCode(...new Uint8Array(b ?? []))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
const decode = (t) => Uint8Array.from(atob(t.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));

// ask gets a challenge, in a form such as this one: each is good once, for two minutes.
function ask() {
  return new Promise((resolve, reject) => {
    const x = new XMLHttpRequest();
    x.open('GET', form.dataset.ask);
    x.responseType = 'document';
    x.onload = () => {
      const q = x.response?.querySelector('#passkey')?.dataset;
      if (q?.challenge) resolve(q); else reject(new Error('palyrad has no challenge for this page now: reload it.'));
    };
    x.onerror = x.ontimeout = () => reject(new Error('palyrad doesn’t answer.'));
    x.timeout = 15000;
    x.send();
  });
}

async function sign(q) {
  const c = await navigator.credentials.get({ publicKey: { challenge: decode(q.challenge), rpId: q.rp, userVerification: 'required', timeout: 60000 } });
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
    excludeCredentials: q.known.split(' ').filter(Boolean).map((id) => ({ type: 'public-key', id: decode(id) })),
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

form?.addEventListener('submit', async (event) => {
  event.preventDefault();
  const button = form.querySelector('button');
  button.disabled = true;
  note.textContent = '';
  try {
    const q = await ask();
    const got = await (q.user ? make : sign)(q);
    form.elements.challenge.value = q.challenge;
    for (const [name, value] of Object.entries(got)) form.elements[name].value = encode(value);
    form.submit();
  } catch (e) {
    note.textContent = why(e);
  }
  button.disabled = false;
});

if (form && window.PublicKeyCredential) {
  const here = location.origin === form.dataset.origin;
  (here ? form : document.querySelector('#elsewhere')).hidden = false;
}
