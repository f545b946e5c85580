// Package cache keeps folders that programs fill from call to call: compilers' results, packages
// that were fetched before.
//
// A cache belongs to one principal, one workspace and one name, and to one session if its owner
// has one; no other call ever sees it. It lies in the state directory, and any number of calls use
// it at a time, as compilers and package managers expect of theirs. When one gives it up, its size
// and the time are written down beside it: [Held] adds up the sizes of a principal's, and palyrad
// removes those that no call used for long, or whose session is over.
//
//	c, err := cache.Take(state, cache.Owner{Principal: p, Workspace: path, UID: uid, GID: gid}, "go")
//	defer c.Close()
//
// What it does not protect against: an earlier call of the same owner. Whatever it left there,
// the next one reads.
package cache

import "time"

// Folder holds the caches, in the state directory.
const Folder = "caches"

// Version is that of a cache's file.
const Version = 1

// Owner is who has a cache, besides its name.
type Owner struct {
	Principal string `json:"principal"` // as Cedar writes it
	Workspace string `json:"workspace"` // its path on the host, links resolved
	UID       uint32 `json:"uid"`       // of the workspace
	GID       uint32 `json:"gid"`
	Session   string `json:"session,omitempty"` // that it ends with; "" for none
}

// Info is what a cache's file says.
type Info struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Owner   Owner     `json:"owner"`
	Made    time.Time `json:"made"`
}

// Use is what is written down when a call gives a cache up.
type Use struct {
	Bytes int64     `json:"bytes"` // allocated
	At    time.Time `json:"at"`
}

// File is one that Fill makes.
type File struct {
	Path string // in the cache, clean and relative
	Text string
}
