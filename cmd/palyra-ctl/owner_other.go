//go:build !unix

package main

import "os"

// ownerOf knows of no owners here.
func ownerOf(os.FileInfo) (uid, gid int, ok bool) { return 0, 0, false }
