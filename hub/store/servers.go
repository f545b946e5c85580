package store

import (
	"database/sql"
	"time"
)

// Server is an MCP server whose tools can be called. What it is, and its tools, are JSON of the
// package that has it started.
type Server struct {
	Name       string
	Spec       []byte
	Listed     []byte // the tools that it listed last; empty: none yet
	Accepted   []byte // those that were accepted
	AddedBy    string
	Added      time.Time
	AcceptedBy string    // "": nobody has
	AcceptedAt time.Time // zero likewise
	Version    int64
}

const serverColumns = `name, spec, listed, accepted, added_by, added, accepted_by, accepted_at, version`

func scanServer(r scanner, s *Server) error {
	var added, accepted int64
	err := r.Scan(&s.Name, &s.Spec, &s.Listed, &s.Accepted, &s.AddedBy, &added, &s.AcceptedBy, &accepted, &s.Version)
	s.Added, s.AcceptedAt = at(added), at(accepted)
	return err
}

// CreateServer adds a server. One of this name is fault.Busy "version_conflict".
func (tx *Tx) CreateServer(s *Server) error {
	const op = "add server"
	fill(&s.Added, tx.now)
	s.Version = 1
	n, err := tx.insert(op, s.AddedBy, `INSERT INTO servers (`+serverColumns+`) VALUES (?, ?, ?, ?, ?, ?, '', 0, 1) ON CONFLICT DO NOTHING`,
		s.Name, blob(s.Spec), blob(s.Listed), blob(s.Accepted), s.AddedBy, ns(s.Added))
	if err == nil && n == 0 {
		err = conflict(op)
	}
	return err
}

// UpdateServer writes all that can change if the row is still the one that was read, and increments
// Version.
func (tx *Tx) UpdateServer(s *Server, by string) error {
	const op = "update server"
	n, err := tx.exec(op, `UPDATE servers SET listed = ?, accepted = ?, accepted_by = ?, accepted_at = ?, version = version + 1 WHERE name = ? AND version = ? AND added = ?`,
		blob(s.Listed), blob(s.Accepted), s.AcceptedBy, ns(s.AcceptedAt), s.Name, s.Version, ns(s.Added))
	if err == nil && n == 0 {
		err = conflict(op)
	}
	if err != nil {
		return err
	}
	tx.spend(by, int64(len(s.Listed)+len(s.Accepted)))
	s.Version++
	return nil
}

// DeleteServer removes a server, or returns fault.NotFound "not_found".
func (tx *Tx) DeleteServer(name string) error {
	n, err := tx.exec("remove server", `DELETE FROM servers WHERE name = ?`, name)
	if err == nil && n == 0 {
		err = NoSuch("server", name)
	}
	return err
}

// Server returns a server, or fault.NotFound "not_found".
func (tx *Tx) Server(name string) (*Server, error) {
	return one(tx, "server", name, `SELECT `+serverColumns+` FROM servers WHERE name = ?`, []any{name}, scanServer)
}

// ServerNames returns the names of all servers, in order.
func (tx *Tx) ServerNames() (out []string, err error) {
	err = tx.query("list servers", `SELECT name FROM servers ORDER BY name`, nil, func(r *sql.Rows) error {
		var name string
		if err := r.Scan(&name); err != nil {
			return err
		}
		out = append(out, name)
		return nil
	})
	return out, err
}

// Servers returns all servers by name; there are few.
func (tx *Tx) Servers() (out []Server, err error) {
	err = tx.query("list servers", `SELECT `+serverColumns+` FROM servers ORDER BY name`, nil, func(r *sql.Rows) error {
		var s Server
		if err := scanServer(r, &s); err != nil {
			return err
		}
		out = append(out, s)
		return nil
	})
	return out, err
}
