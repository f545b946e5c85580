package store

import (
	"palyra/internal/canon"
)

func scanIdempotency(r scanner, i *Idempotency) error {
	var created, expires int64
	var request []byte
	var answered bool
	err := r.Scan(&i.Principal, &i.Key, &request, &i.Response, &answered, &created, &expires)
	if answered {
		i.Response = blob(i.Response) // the driver does not tell an empty value from none
	}
	i.Request, i.Created, i.Expires = digestOf(request), at(created), at(expires)
	return err
}

func (tx *Tx) beginIdempotent(i Idempotency) (*Idempotency, error) {
	const op = "reserve idempotency key"
	fill(&i.Created, tx.now)
	if !i.Expires.After(i.Created) {
		return nil, usage("invalid_input", op, "it expires before it begins")
	}
	if i.Request == (canon.Digest{}) {
		return nil, usage("invalid_input", op, "no digest of the request is given")
	}
	// A key is forgotten at its time, whether or not somebody swept. A step of the
	// clock brings that no nearer: what was done once would be done again.
	if _, err := tx.exec(op, `DELETE FROM idempotency WHERE principal = ? AND key = ? AND expires <= ?`, i.Principal, i.Key, ns(tx.forget)); err != nil {
		return nil, err
	}
	n, err := tx.insert(op, i.Principal, `INSERT INTO idempotency (principal, key, request, response, created, expires) VALUES (?, ?, ?, NULL, ?, ?)
		ON CONFLICT DO NOTHING`, i.Principal, i.Key, digestBlob(i.Request), ns(i.Created), ns(i.Expires))
	if err != nil || n == 1 {
		return nil, err
	}
	old, err := one(tx, "idempotency_key", i.Key, `SELECT principal, key, request, response, response IS NOT NULL, created, expires FROM idempotency
		WHERE principal = ? AND key = ?`, []any{i.Principal, i.Key}, scanIdempotency)
	if err == nil && old.Request != i.Request {
		return nil, usage("idempotency_key_reused", op, "%.80q came with another request", i.Key)
	}
	return old, err
}

func (tx *Tx) finishIdempotent(principal, key string, response []byte) error {
	const op = "record idempotent response"
	n, err := tx.exec(op, `UPDATE idempotency SET response = ? WHERE principal = ? AND key = ? AND response IS NULL`, blob(response), principal, key)
	if err == nil && n == 0 {
		err = NoSuch("idempotency_key", key)
	}
	if err == nil {
		tx.spend(principal, int64(len(response)))
	}
	return err
}

func (tx *Tx) abandonIdempotent(principal, key string) error {
	_, err := tx.exec("give back idempotency key", `DELETE FROM idempotency WHERE principal = ? AND key = ? AND response IS NULL`, principal, key)
	return err
}

func (tx *Tx) expireIdempotent(most int) (int, error) {
	n, err := tx.exec("expire idempotency keys", `DELETE FROM idempotency WHERE (principal, key) IN
		(SELECT principal, key FROM idempotency WHERE expires <= ? ORDER BY expires LIMIT ?)`, ns(tx.forget), most)
	return int(n), err
}

func (tx *Tx) setting(key string) (*Setting, error) {
	return one(tx, "setting", key, `SELECT key, value, version FROM settings WHERE key = ?`, []any{key}, func(r scanner, s *Setting) error {
		return r.Scan(&s.Key, &s.Value, &s.Version)
	})
}

func (tx *Tx) putSetting(s *Setting) error {
	op := "put setting " + quoteID(s.Key)
	n, err := tx.insert(op, "", `INSERT INTO settings (key, value, version) SELECT ?1, ?2, 1 WHERE ?3 = 0 ON CONFLICT DO NOTHING`, s.Key, blob(s.Value), s.Version)
	if err == nil && n == 0 {
		n, err = tx.exec(op, `UPDATE settings SET value = ?2, version = version + 1 WHERE key = ?1 AND version = ?3`, s.Key, blob(s.Value), s.Version)
	}
	if err != nil {
		return err
	}
	if n == 0 {
		return conflict(op)
	}
	s.Version++
	return nil
}
