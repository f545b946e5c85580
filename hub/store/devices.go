package store

import (
	"database/sql"
	"time"

	"palyra/internal/canon"
)

// Device is a device that has had a certificate. Its authority is a token's; see authz/access.
type Device struct {
	ID        string
	Name      string // for people
	Principal string
	Kind      string
	Key       canon.Digest // SHA-256 of its SubjectPublicKeyInfo
	Token     string       // whose scopes and end are the device's
	Created   time.Time
	Seen      time.Time // zero: never
	Revoked   time.Time // zero: it isn't
	Version   int64

	Certificates []Certificate // that have not expired, oldest first; only of Devices
}

// Certificate is a leaf that was issued to a device.
type Certificate struct {
	Digest  canon.Digest // SHA-256 of its DER
	Serial  string
	Expires time.Time
}

// PutDevice adds a device with its first certificate, or puts it in the place of the one of its id
// and drops that one's certificates.
func (tx *Tx) PutDevice(d *Device, c Certificate) error {
	const op = "add device"
	if _, err := tx.exec(op, `DELETE FROM device_certificates WHERE device = ?`, d.ID); err != nil {
		return err
	}
	fill(&d.Created, tx.now)
	d.Version = 1
	if _, err := tx.insert(op, d.Principal, `INSERT INTO devices (id, name, principal, kind, key, token, created, seen, revoked, version)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0, 1)
		ON CONFLICT (id) DO UPDATE SET name = ?2, principal = ?3, kind = ?4, key = ?5, token = ?6, created = ?7, seen = 0, revoked = 0, version = version + 1`,
		d.ID, d.Name, d.Principal, d.Kind, d.Key[:], d.Token, ns(d.Created)); err != nil {
		return err
	}
	if _, err := tx.row(op, `SELECT version FROM devices WHERE id = ?`, []any{d.ID}, &d.Version); err != nil {
		return err
	}
	return tx.AddCertificate(d, c)
}

// AddCertificate adds a certificate of a device, and drops its expired ones.
func (tx *Tx) AddCertificate(d *Device, c Certificate) error {
	const op = "add certificate"
	if _, err := tx.exec(op, `DELETE FROM device_certificates WHERE device = ? AND expires <= ?`, d.ID, ns(tx.now)); err != nil {
		return err
	}
	_, err := tx.insert(op, d.Principal, `INSERT INTO device_certificates (digest, device, serial, expires) VALUES (?, ?, ?, ?)`,
		c.Digest[:], d.ID, c.Serial, ns(c.Expires))
	return err
}

// RevokeDevice notes that a device was revoked, and drops its certificates.
func (tx *Tx) RevokeDevice(id string, at time.Time) error {
	const op = "revoke device"
	if _, err := tx.exec(op, `DELETE FROM device_certificates WHERE device = ?`, id); err != nil {
		return err
	}
	_, err := tx.exec(op, `UPDATE devices SET revoked = ?1, version = version + 1 WHERE id = ?2 AND revoked = 0`, ns(at), id)
	return err
}

// RemoveDevice removes a device with its certificates. One that there isn't is no error.
func (tx *Tx) RemoveDevice(id string) error {
	const op = "remove device"
	if _, err := tx.exec(op, `DELETE FROM device_certificates WHERE device = ?`, id); err != nil {
		return err
	}
	_, err := tx.exec(op, `DELETE FROM devices WHERE id = ?`, id)
	return err
}

// SeeDevice notes when a device was last seen. An older time changes nothing.
func (tx *Tx) SeeDevice(id string, at time.Time) error {
	_, err := tx.exec("record last contact", `UPDATE devices SET seen = ?1 WHERE id = ?2 AND seen < ?1`, ns(at), id)
	return err
}

// Devices returns all devices by id, with their certificates; there are few.
func (tx *Tx) Devices() (out []Device, err error) {
	const op = "list devices"
	err = tx.query(op, `SELECT id, name, principal, kind, key, token, created, seen, revoked, version FROM devices ORDER BY id`, nil, func(r *sql.Rows) error {
		var d Device
		var key []byte
		var created, seen, revoked int64
		err := r.Scan(&d.ID, &d.Name, &d.Principal, &d.Kind, &key, &d.Token, &created, &seen, &revoked, &d.Version)
		d.Key, d.Created, d.Seen, d.Revoked = digestOf(key), at(created), at(seen), at(revoked)
		out = append(out, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	i := 0
	err = tx.query(op, `SELECT digest, device, serial, expires FROM device_certificates ORDER BY device, expires, digest`, nil, func(r *sql.Rows) error {
		var c Certificate
		var digest []byte
		var device string
		var expires int64
		err := r.Scan(&digest, &device, &c.Serial, &expires)
		c.Digest, c.Expires = digestOf(digest), at(expires)
		for i < len(out) && out[i].ID < device {
			i++
		}
		if i < len(out) && out[i].ID == device { // always: the schema sees to it
			out[i].Certificates = append(out[i].Certificates, c)
		}
		return err
	})
	return out, err
}
