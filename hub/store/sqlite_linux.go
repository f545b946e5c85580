package store

import (
	"database/sql/driver"
	"net/url"

	"modernc.org/sqlite"
)

// connector opens connections to the database file at path. The first group of
// settings makes a commit durable and lets readers and the writer work side by
// side; the second takes from SQL what only an attacker would want of it.
//
// https://www.sqlite.org/pragma.html, https://www.sqlite.org/security.html
func connector(path string) (driver.Connector, error) {
	q := url.Values{
		"_busy_timeout": {"5000"},
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"}, // an fsync of the write-ahead log in every commit
		"_foreign_keys": {"on"},

		"_defensive": {"1"},
		"_dqs":       {"0"},
		"_error_rc":  {"1"},
		"_pragma": {"trusted_schema(off)", "cell_size_check(on)", "secure_delete(on)", "journal_size_limit(67108864)",
			// A savepoint that has changed more than 64 KiB would go on in a file in
			// /tmp, which a confined palyrad cannot open: every commit would fail.
			"temp_store(memory)"},
		"mode": {"rw"}, // never creates the file: we did, with our mode
	}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}
	return sqlite.NewConnector(u.String())
}
