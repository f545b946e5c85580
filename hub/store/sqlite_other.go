//go:build !linux

package store

import (
	"database/sql/driver"
	"errors"

	"palyra/internal/fault"
)

// connector refuses: SQLite is built into Palyra for Linux only.
func connector(string) (driver.Connector, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "open store",
		errors.New("the working state needs Linux: Palyra has SQLite on no other platform"))
}
