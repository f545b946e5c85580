// Package cache keeps folders that programs fill from call to call: compilers' results, packages
// that were fetched before.
//
// A cache belongs to one principal, one workspace and one name; no other call ever sees it. It
// lies in the state directory, and any number of calls use it at a time, as compilers and package
// managers expect of theirs.
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
}

// Info is what a cache's file says.
type Info struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Owner   Owner     `json:"owner"`
	Made    time.Time `json:"made"`
}
