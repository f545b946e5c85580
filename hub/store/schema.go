package store

// migrations lead from one schema to the next, in order: the first makes schema
// 1. What has been in a release is never changed, only followed by another.
func migrations() []string {
	return []string{schema1, schema2, schema3, schema4, schema5, schema6, schema7, schema8, schema9, schema10}
}

// schemaDigest is the SHA-256 of the newest schema as SQLite keeps it; see
// Store.checkSchema. It changes with every migration and never otherwise.
const schemaDigest = "1ffd3ea09c94a33ae01a0aa9d57cc52f8be1b35cac2e335a0b6ec314c326c6c8"

// schema1 is described in docs/formats/store.md. "n" orders rows by creation and
// survives a VACUUM, which renumbers bare rowids.
const schema1 = `
CREATE TABLE sessions (
	n         INTEGER PRIMARY KEY,
	id        TEXT    NOT NULL UNIQUE,
	principal TEXT    NOT NULL CHECK (principal <> ''),
	title     TEXT    NOT NULL,
	state     TEXT    NOT NULL CHECK (state IN ('open', 'ended')),
	version   INTEGER NOT NULL CHECK (version > 0),
	created   INTEGER NOT NULL,
	ended     INTEGER NOT NULL,
	CHECK ((state = 'ended') = (ended <> 0))
) STRICT;
CREATE INDEX sessions_principal ON sessions (principal, n);

CREATE TABLE runs (
	n            INTEGER PRIMARY KEY,
	id           TEXT    NOT NULL UNIQUE,
	session      TEXT    NOT NULL REFERENCES sessions (id),
	principal    TEXT    NOT NULL CHECK (principal <> ''),
	state        TEXT    NOT NULL CHECK (state IN ('pending', 'accepted', 'in_progress', 'waiting_approval', 'done', 'failed', 'cancelled')),
	reason       TEXT    NOT NULL,
	plan         BLOB    NOT NULL,
	budget_calls INTEGER NOT NULL CHECK (budget_calls >= 0),
	budget_wall  INTEGER NOT NULL CHECK (budget_wall >= 0),
	budget_bytes INTEGER NOT NULL CHECK (budget_bytes >= 0),
	use_calls    INTEGER NOT NULL CHECK (use_calls >= 0),
	use_wall     INTEGER NOT NULL CHECK (use_wall >= 0),
	use_bytes    INTEGER NOT NULL CHECK (use_bytes >= 0),
	key          TEXT    NOT NULL,
	version      INTEGER NOT NULL CHECK (version > 0),
	created      INTEGER NOT NULL,
	started      INTEGER NOT NULL,
	ended        INTEGER NOT NULL,
	CHECK ((state IN ('done', 'failed', 'cancelled')) = (ended <> 0))
) STRICT;
CREATE INDEX runs_session   ON runs (session, n);
CREATE INDEX runs_principal ON runs (principal, n);
CREATE INDEX runs_live      ON runs (n) WHERE ended = 0;
CREATE UNIQUE INDEX runs_key    ON runs (principal, key) WHERE key <> '';
CREATE UNIQUE INDEX runs_active ON runs (session) WHERE state IN ('in_progress', 'waiting_approval');

CREATE TABLE steps (
	n         INTEGER PRIMARY KEY,
	run       TEXT    NOT NULL REFERENCES runs (id),
	idx       INTEGER NOT NULL CHECK (idx >= 0),
	tool      TEXT    NOT NULL CHECK (tool <> ''),
	input     BLOB    NOT NULL,
	state     TEXT    NOT NULL CHECK (state IN ('pending', 'running', 'done', 'failed', 'skipped')),
	call      TEXT    NOT NULL,
	capsule   BLOB    NOT NULL CHECK (length(capsule) IN (0, 32)),
	outcome   TEXT    NOT NULL,
	exit      INTEGER NOT NULL,
	reason    TEXT    NOT NULL,
	output    BLOB    NOT NULL,
	artifact  BLOB    NOT NULL CHECK (length(artifact) IN (0, 32)),
	log_index INTEGER NOT NULL,
	started   INTEGER NOT NULL,
	ended     INTEGER NOT NULL,
	UNIQUE (run, idx),
	CHECK ((state = 'done') = (outcome <> '')),
	CHECK (state <> 'done' OR (call <> '' AND length(capsule) = 32)),
	CHECK (state <> 'failed' OR call = '')
) STRICT;
CREATE UNIQUE INDEX steps_call ON steps (call) WHERE call <> '';

CREATE TABLE events (
	run     INTEGER NOT NULL REFERENCES runs (n),
	seq     INTEGER NOT NULL CHECK (seq > 0),
	kind    TEXT    NOT NULL CHECK (kind <> ''),
	time    INTEGER NOT NULL,
	payload BLOB    NOT NULL,
	PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE approvals (
	n          INTEGER PRIMARY KEY,
	id         TEXT    NOT NULL UNIQUE,
	run        TEXT    REFERENCES runs (id),
	session    TEXT    REFERENCES sessions (id),
	step       INTEGER NOT NULL,
	call       TEXT    NOT NULL,
	requester  TEXT    NOT NULL CHECK (requester <> ''),
	decision   TEXT    NOT NULL,
	request    BLOB    NOT NULL,
	capsule    BLOB    NOT NULL CHECK (length(capsule) = 32),
	policy_set BLOB    NOT NULL CHECK (length(policy_set) = 32),
	scope      TEXT    NOT NULL,
	state      TEXT    NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'withdrawn')),
	version    INTEGER NOT NULL CHECK (version > 0),
	approver   TEXT    NOT NULL,
	surface    TEXT    NOT NULL,
	detail     TEXT    NOT NULL,
	created    INTEGER NOT NULL,
	expires    INTEGER NOT NULL CHECK (expires > created),
	answered   INTEGER NOT NULL,
	used       INTEGER NOT NULL,
	CHECK ((state = 'pending') = (answered = 0)),
	CHECK (state NOT IN ('approved', 'denied') OR approver <> ''),
	CHECK (used = 0 OR state = 'approved')
) STRICT;
CREATE INDEX approvals_pending   ON approvals (n) WHERE answered = 0;
CREATE INDEX approvals_run       ON approvals (run, n) WHERE run IS NOT NULL;
CREATE INDEX approvals_session   ON approvals (session, n) WHERE session IS NOT NULL;
CREATE INDEX approvals_requester ON approvals (requester, n);

CREATE TABLE artifacts (
	digest  BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
	size    INTEGER NOT NULL CHECK (size >= 0),
	type    TEXT    NOT NULL CHECK (type <> ''),
	created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE artifact_holds (
	digest BLOB NOT NULL REFERENCES artifacts (digest),
	holder TEXT NOT NULL CHECK (holder <> ''),
	PRIMARY KEY (digest, holder)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifact_holders ON artifact_holds (holder);

CREATE TABLE idempotency (
	principal TEXT    NOT NULL CHECK (principal <> ''),
	key       TEXT    NOT NULL CHECK (key <> ''),
	request   BLOB    NOT NULL CHECK (length(request) = 32),
	response  BLOB,
	created   INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expires ON idempotency (expires);

CREATE TABLE settings (
	key     TEXT    NOT NULL PRIMARY KEY CHECK (key <> ''),
	value   BLOB    NOT NULL,
	version INTEGER NOT NULL CHECK (version > 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE members (
	principal TEXT    NOT NULL PRIMARY KEY CHECK (principal <> ''),
	role      TEXT    NOT NULL CHECK (role IN ('owner', 'admin', 'operator')),
	added_by  TEXT    NOT NULL,
	changed   INTEGER NOT NULL,
	version   INTEGER NOT NULL CHECK (version > 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
	n         INTEGER PRIMARY KEY,
	id        TEXT    NOT NULL UNIQUE,
	principal TEXT    NOT NULL CHECK (principal <> ''),
	name      TEXT    NOT NULL,
	hash      BLOB    NOT NULL CHECK (length(hash) = 32),
	scopes    TEXT    NOT NULL,
	parent    TEXT    NOT NULL,
	successor TEXT    NOT NULL,
	created   INTEGER NOT NULL,
	expires   INTEGER NOT NULL CHECK (expires > created),
	revoked   INTEGER NOT NULL,
	used      INTEGER NOT NULL
) STRICT;
CREATE INDEX tokens_principal ON tokens (principal);
CREATE TRIGGER tokens_revoked_for_good BEFORE UPDATE OF revoked ON tokens
	WHEN old.revoked <> 0 AND new.revoked <> old.revoked
	BEGIN SELECT raise(ABORT, 'a revoked token stays revoked'); END;
CREATE TRIGGER tokens_never_gain BEFORE UPDATE OF id, principal, hash, scopes, parent, created ON tokens
	WHEN new.id <> old.id OR new.principal <> old.principal OR new.hash <> old.hash OR new.scopes <> old.scopes
		OR new.parent <> old.parent OR new.created <> old.created
	BEGIN SELECT raise(ABORT, 'what a token is worth is fixed'); END;
CREATE TRIGGER tokens_expire_no_later BEFORE UPDATE OF expires ON tokens WHEN new.expires > old.expires
	BEGIN SELECT raise(ABORT, 'a token is not prolonged'); END;
CREATE TRIGGER tokens_stay BEFORE DELETE ON tokens
	BEGIN SELECT raise(ABORT, 'tokens are revoked and not deleted'); END;

CREATE TABLE access_changes (
	generation INTEGER NOT NULL PRIMARY KEY CHECK (generation > 0),
	time       INTEGER NOT NULL,
	actor      TEXT    NOT NULL,
	act        TEXT    NOT NULL CHECK (act <> ''),
	subject    TEXT    NOT NULL,
	detail     BLOB    NOT NULL,
	log_index  INTEGER
) STRICT;
CREATE INDEX access_unlogged ON access_changes (generation) WHERE log_index IS NULL;
`

// schema2 has indexes for what is asked often and is few among many: runs and
// sessions in the order in which they ended, sessions that are open, and steps
// that the journal has not settled ([NotLogged]).
const schema2 = `
CREATE INDEX runs_ended      ON runs (ended) WHERE ended <> 0;
CREATE INDEX sessions_ended  ON sessions (ended) WHERE ended <> 0;
CREATE INDEX sessions_open   ON sessions (principal) WHERE state = 'open';
CREATE INDEX steps_unsettled ON steps (n) WHERE log_index = 9223372036854775807;
`

// schema3 lets tokens be forgotten that ended, but for those that minted others:
// whoever revokes a token ends what was made with it.
const schema3 = `
DROP TRIGGER tokens_stay;
CREATE TRIGGER tokens_stay BEFORE DELETE ON tokens
	WHEN (old.revoked = 0 AND old.expires > unixepoch() * 1000000000)
		OR EXISTS (SELECT 1 FROM tokens t WHERE t.parent = old.id)
	BEGIN SELECT raise(ABORT, 'tokens are forgotten when they have ended, leaves first'); END;
`

// schema4 lets a session have several active runs if they are parallel.
const schema4 = `
ALTER TABLE runs ADD COLUMN parallel INTEGER NOT NULL DEFAULT 0 CHECK (parallel IN (0, 1));
DROP INDEX runs_active;
CREATE UNIQUE INDEX runs_active ON runs (session) WHERE state IN ('in_progress', 'waiting_approval') AND parallel = 0;
`

// schema5 has the MCP servers whose tools can be called.
const schema5 = `
CREATE TABLE servers (
	name        TEXT    NOT NULL PRIMARY KEY CHECK (name <> ''),
	spec        BLOB    NOT NULL,
	listed      BLOB    NOT NULL,
	accepted    BLOB    NOT NULL,
	added_by    TEXT    NOT NULL CHECK (added_by <> ''),
	added       INTEGER NOT NULL,
	accepted_by TEXT    NOT NULL,
	accepted_at INTEGER NOT NULL,
	version     INTEGER NOT NULL CHECK (version > 0),
	CHECK ((accepted_by = '') = (accepted_at = 0))
) STRICT, WITHOUT ROWID;
`

// schema6 has the devices that were paired, and their certificates in force. A revoked device
// comes back with a new token alone.
const schema6 = `
CREATE TABLE devices (
	id        TEXT    NOT NULL PRIMARY KEY CHECK (id <> ''),
	name      TEXT    NOT NULL,
	principal TEXT    NOT NULL CHECK (principal <> ''),
	kind      TEXT    NOT NULL CHECK (kind <> ''),
	key       BLOB    NOT NULL CHECK (length(key) = 32),
	token     TEXT    NOT NULL UNIQUE CHECK (token <> ''),
	created   INTEGER NOT NULL,
	seen      INTEGER NOT NULL,
	revoked   INTEGER NOT NULL,
	version   INTEGER NOT NULL CHECK (version > 0)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER devices_revoked_for_good BEFORE UPDATE OF revoked ON devices
	WHEN old.revoked <> 0 AND new.revoked <> old.revoked AND new.token = old.token
	BEGIN SELECT raise(ABORT, 'a revoked device stays revoked'); END;

CREATE TABLE device_certificates (
	digest  BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
	device  TEXT    NOT NULL REFERENCES devices (id),
	serial  TEXT    NOT NULL CHECK (length(serial) = 32),
	expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX device_certificates_device ON device_certificates (device);
`

// schema7 has the passkeys with which members' browsers sign in.
const schema7 = `
CREATE TABLE passkeys (
	id         TEXT    NOT NULL PRIMARY KEY CHECK (id <> ''),
	principal  TEXT    NOT NULL CHECK (principal <> ''),
	name       TEXT    NOT NULL,
	credential BLOB    NOT NULL UNIQUE CHECK (length(credential) BETWEEN 1 AND 1023),
	key        BLOB    NOT NULL CHECK (length(key) > 0),
	count      INTEGER NOT NULL CHECK (count BETWEEN 0 AND 4294967295),
	created    INTEGER NOT NULL,
	used       INTEGER NOT NULL,
	halted     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER passkeys_fixed BEFORE UPDATE OF id, principal, credential, key, created ON passkeys
	WHEN new.id <> old.id OR new.principal <> old.principal OR new.credential <> old.credential OR new.key <> old.key
		OR new.created <> old.created
	BEGIN SELECT raise(ABORT, 'whose a passkey is and its key are fixed'); END;
CREATE TRIGGER passkeys_count_up BEFORE UPDATE OF count ON passkeys WHEN new.count < old.count
	BEGIN SELECT raise(ABORT, 'a passkey counts no lower'); END;
CREATE TRIGGER passkeys_halted_for_good BEFORE UPDATE OF halted ON passkeys
	WHEN old.halted <> 0 AND new.halted <> old.halted
	BEGIN SELECT raise(ABORT, 'a halted passkey stays halted'); END;
`

// schema8 has the labels of sessions: the origins of what each has read, with the first call that
// brought them. A label only grows. An older store didn't keep them, so an open session whose calls
// may have run is taken to have read from outside.
const schema8 = `
CREATE TABLE session_inputs (
	session TEXT    NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
	origin  TEXT    NOT NULL CHECK (origin IN ('memory', 'model', 'operator', 'person', 'project', 'tool', 'web')),
	tool    TEXT    NOT NULL,
	run     TEXT    NOT NULL,
	step    INTEGER NOT NULL CHECK (step >= 0),
	time    INTEGER NOT NULL,
	PRIMARY KEY (session, origin)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER session_inputs_fixed BEFORE UPDATE ON session_inputs
	BEGIN SELECT raise(ABORT, 'the label of a session only grows'); END;
CREATE TRIGGER session_inputs_stay BEFORE DELETE ON session_inputs
	WHEN EXISTS (SELECT 1 FROM sessions s WHERE s.id = old.session)
	BEGIN SELECT raise(ABORT, 'the label of a session only grows'); END;
INSERT INTO session_inputs (session, origin, tool, run, step, time)
	SELECT session, 'web', tool, run, idx, ended FROM (
		SELECT r.session, s.tool, s.run, s.idx, s.ended, min(s.n)
		FROM steps s JOIN runs r ON r.id = s.run JOIN sessions e ON e.id = r.session
		WHERE e.state = 'open' AND s.outcome IN ('executed', 'failed', 'timed_out', 'killed', 'outcome_unknown')
		GROUP BY r.session);
`

// schema9 has what principals had remembered. What an item says is sealed under a key of the vault;
// the rest is what it's found by and joined from. An item is fixed. One of a session goes with it.
const schema9 = `
CREATE TABLE memories (
	n         INTEGER PRIMARY KEY AUTOINCREMENT, -- no number comes again: indexes are read on from one
	id        TEXT    NOT NULL UNIQUE,
	principal TEXT    NOT NULL CHECK (principal <> ''),
	scope     TEXT    NOT NULL CHECK (scope IN ('principal', 'session')),
	session   TEXT    NOT NULL,
	source    TEXT    NOT NULL CHECK (source <> ''),
	origins   TEXT    NOT NULL CHECK (origins <> ''),
	created   INTEGER NOT NULL,
	expires   INTEGER NOT NULL CHECK (expires = 0 OR expires > created),
	size      INTEGER NOT NULL CHECK (size = length(sealed)),
	sealed    BLOB    NOT NULL CHECK (length(sealed) > 0),
	CHECK (scope <> 'session' OR session <> '')
) STRICT;
CREATE INDEX memories_principal ON memories (principal, n, size);
CREATE INDEX memories_session   ON memories (session) WHERE session <> '';
CREATE INDEX memories_expires   ON memories (expires) WHERE expires <> 0;
CREATE TRIGGER memories_fixed BEFORE UPDATE ON memories
	BEGIN SELECT raise(ABORT, 'an item of memory is fixed'); END;
CREATE TRIGGER memories_of_session AFTER DELETE ON sessions
	BEGIN DELETE FROM memories WHERE session = old.id AND scope = 'session'; END;
`

// schema10 has what turns of models took, by day: a row for a principal's turns of a model, and one
// for a session's, which goes with it. Names of principals have a colon, those of sessions none. A
// principal's stay, whatever is removed of the runs.
const schema10 = `
CREATE TABLE usage (
	whose     TEXT    NOT NULL CHECK (whose <> ''), -- a principal or a session
	day       INTEGER NOT NULL, -- since 1970, UTC
	model     TEXT    NOT NULL CHECK (model <> ''), -- as the configuration calls it
	turns     INTEGER NOT NULL CHECK (turns >= 0),
	sized     INTEGER NOT NULL CHECK (sized BETWEEN 0 AND turns), -- of turns: counted by their size
	input     INTEGER NOT NULL CHECK (input >= 0),
	cached    INTEGER NOT NULL CHECK (cached >= 0),
	output    INTEGER NOT NULL CHECK (output >= 0),
	reasoning INTEGER NOT NULL CHECK (reasoning >= 0),
	cost      INTEGER NOT NULL CHECK (cost >= 0), -- in millionths
	PRIMARY KEY (whose, day, model)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER usage_of_session AFTER DELETE ON sessions
	BEGIN DELETE FROM usage WHERE whose = old.id; END;
`
