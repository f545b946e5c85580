// Registers the worker. Its address is the only one that a policy of this page makes a script's.
const at = '{{asset "worker.js"}}';
if (navigator.serviceWorker && 'NavigationPreloadManager' in window) {
  const shell = window.trustedTypes?.createPolicy('shell', { createScriptURL: () => at });
  navigator.serviceWorker.register(shell ? shell.createScriptURL('') : at, { scope: '/console/' }).catch(() => {});
}
