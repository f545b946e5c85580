package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"palyra/authz/access"
	"palyra/internal/fault"
)

// Access returns the part of the store that keeps members and tokens.
func (s *Store) Access() access.Storage { return (*registry)(s) }

// registry is a Store as authz/access sees it.
type registry Store

var _ access.Storage = (*registry)(nil)

// Load returns everything.
func (r *registry) Load(ctx context.Context) (*access.State, error) {
	return View(ctx, (*Store)(r), func(tx *Tx) (*access.State, error) {
		st := &access.State{}
		if _, err := tx.row("load access registry", `SELECT coalesce(max(generation), 0) FROM access_changes`, nil, &st.Generation); err != nil {
			return nil, err
		}
		err := tx.query("load members", `SELECT principal, role, added_by, changed, version FROM members`, nil, func(r *sql.Rows) error {
			var m access.Member
			var changed int64
			err := r.Scan(&m.Principal, &m.Role, &m.AddedBy, &changed, &m.Version)
			m.Changed = at(changed)
			st.Members = append(st.Members, m)
			return err
		})
		if err == nil {
			st.Tokens, err = tx.tokens()
		}
		if err == nil {
			st.Passkeys, err = tx.passkeys()
		}
		if err == nil {
			st.Unlogged, err = tx.unlogged()
		}
		return st, err
	})
}

func (tx *Tx) tokens() (tokens []access.Token, err error) {
	err = tx.query("load tokens", `SELECT id, principal, name, hash, scopes, parent, successor, created, expires, revoked, used FROM tokens ORDER BY n`,
		nil, func(r *sql.Rows) error {
			var t access.Token
			var hash []byte
			var scopes string
			var created, expires, revoked, used int64
			if err := r.Scan(&t.ID, &t.Principal, &t.Name, &hash, &scopes, &t.Parent, &t.Successor, &created, &expires, &revoked, &used); err != nil {
				return err
			}
			t.Hash = digestOf(hash)
			t.Created, t.Expires, t.Revoked, t.LastUsed = at(created), at(expires), at(revoked), at(used)
			var err error
			t.Scopes, err = access.ParseSet(strings.Fields(scopes))
			tokens = append(tokens, t)
			return err
		})
	return tokens, err
}

func (tx *Tx) passkeys() (out []access.Passkey, err error) {
	err = tx.query("load passkeys", `SELECT id, principal, name, credential, key, count, created, used, halted FROM passkeys`, nil, func(r *sql.Rows) error {
		var p access.Passkey
		var count, created, used, halted int64
		err := r.Scan(&p.ID, &p.Principal, &p.Name, &p.Credential, &p.Key, &count, &created, &used, &halted)
		p.Count, p.Created, p.LastUsed, p.Halted = uint32(count), at(created), at(used), at(halted)
		out = append(out, p)
		return err
	})
	return out, err
}

func (tx *Tx) unlogged() (changes []access.Change, err error) {
	err = tx.query("load access changes", `SELECT generation, time, actor, act, subject, detail FROM access_changes WHERE log_index IS NULL ORDER BY generation`,
		nil, func(r *sql.Rows) error {
			var c access.Change
			var t int64
			var detail []byte
			if err := r.Scan(&c.Generation, &t, &c.Actor, &c.Act, &c.Subject, &detail); err != nil {
				return err
			}
			c.Time = at(t)
			changes = append(changes, c)
			return json.Unmarshal(detail, &changes[len(changes)-1].Detail)
		})
	return changes, err
}

// Apply makes one change durable.
func (r *registry) Apply(ctx context.Context, c access.Change) error {
	const op = "change access registry"
	detail, err := json.Marshal(c.Detail)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	who, _, _ := strings.Cut(c.Actor, " ") // the token that it used follows
	return (*Store)(r).Update(ctx, func(tx *Tx) error {
		n, err := tx.insert(op, who, `INSERT INTO access_changes (generation, time, actor, act, subject, detail)
			SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE ?1 = (SELECT coalesce(max(generation), 0) + 1 FROM access_changes)`,
			int64(c.Generation), ns(c.Time), c.Actor, c.Act, c.Subject, detail)
		if err != nil {
			return err
		}
		if n == 0 {
			return conflict(op)
		}
		for _, p := range c.Removed {
			if _, err := tx.exec(op, `DELETE FROM members WHERE principal = ?`, p); err != nil {
				return err
			}
		}
		for _, m := range c.Members {
			if _, err := tx.insert(op, who, `INSERT INTO members (principal, role, added_by, changed, version) VALUES (?1, ?2, ?3, ?4, ?5)
				ON CONFLICT (principal) DO UPDATE SET role = ?2, added_by = ?3, changed = ?4, version = ?5`,
				m.Principal, string(m.Role), m.AddedBy, ns(m.Changed), int64(m.Version)); err != nil {
				return err
			}
		}
		for _, t := range c.Tokens {
			// Only what may change is updated; the schema's triggers see to the rest.
			if _, err := tx.insert(op, who, `INSERT INTO tokens (id, principal, name, hash, scopes, parent, successor, created, expires, revoked, used)
				VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0)
				ON CONFLICT (id) DO UPDATE SET successor = ?7, expires = ?9, revoked = ?10`,
				t.ID, t.Principal, t.Name, t.Hash[:], t.Scopes.String(), t.Parent, t.Successor, ns(t.Created), ns(t.Expires), ns(t.Revoked)); err != nil {
				return err
			}
		}
		return tx.changePasskeys(op, who, c)
	})
}

func (tx *Tx) changePasskeys(op, who string, c access.Change) error {
	for _, p := range c.Forgotten {
		if _, err := tx.exec(op, `DELETE FROM passkeys WHERE id = ?`, p.ID); err != nil {
			return err
		}
	}
	for _, p := range c.Passkeys {
		if _, err := tx.insert(op, who, `INSERT INTO passkeys (id, principal, name, credential, key, count, created, used, halted)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO UPDATE SET halted = ?9`,
			p.ID, p.Principal, p.Name, p.Credential, p.Key, int64(p.Count), ns(p.Created), ns(p.LastUsed), ns(p.Halted)); err != nil {
			return err
		}
	}
	return nil
}

// UsePasskey records a signature of a passkey.
func (r *registry) UsePasskey(ctx context.Context, id string, count uint32, t time.Time) error {
	return (*Store)(r).Update(ctx, func(tx *Tx) error {
		_, err := tx.exec("record signature", `UPDATE passkeys SET count = ?1, used = ?2 WHERE id = ?3`, int64(count), ns(t), id)
		return err
	})
}

// Logged says that the change of a generation is in the journal.
func (r *registry) Logged(ctx context.Context, generation, index uint64) error {
	return (*Store)(r).Update(ctx, func(tx *Tx) error {
		_, err := tx.exec("record journal index", `UPDATE access_changes SET log_index = ? WHERE generation = ?`, int64(index), int64(generation))
		return err
	})
}

// Forget removes tokens that ended.
func (r *registry) Forget(ctx context.Context, ids []string) error {
	return (*Store)(r).Update(ctx, func(tx *Tx) error {
		for _, id := range ids {
			if _, err := tx.exec("forget token", `DELETE FROM tokens WHERE id = ?`, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// Touch records when tokens were last used. An older time changes nothing.
func (r *registry) Touch(ctx context.Context, used map[string]time.Time) error {
	return (*Store)(r).Update(ctx, func(tx *Tx) error {
		for id, t := range used {
			if _, err := tx.exec("record last use", `UPDATE tokens SET used = ?1 WHERE id = ?2 AND used < ?1`, ns(t), id); err != nil {
				return err
			}
		}
		return nil
	})
}
