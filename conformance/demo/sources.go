package main

import (
	"io/fs"
	"strings"
)

// sources is a file system without node_modules: the packages installed in the work tree
// may differ from the lock file.
type sources struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (s sources) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(s.FS, name)
	kept := entries[:0]
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "node_modules") {
			kept = append(kept, e)
		}
	}
	return kept, err
}
