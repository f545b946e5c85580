// Package tree reads a tree of processes from /proc.
//
//	w := tree.NewWalk(limit)
//	pids := w.Descendants(reaper) // w.Cut: there may be more
//
// What it does not protect against: processes come and go meanwhile. One that was listed
// may have ended, and one that is not may have come.
package tree

import (
	"bufio"
	"os"
	"strconv"
)

// A Walk reads a tree of processes. The tree may change while it is read:
// children that fork and end are met at one place after another, without end. So each
// name that is read, of a thread or of a child, takes one of the walk's budget, and a
// walk that has none left is cut.
type Walk struct {
	proc   string
	left   int
	Cut    bool // not all was read
	Missed bool // a thread ended before its children were read, and they are another's now
}

// ownThreads is how many threads of palyra-cell a walk has room for.
const ownThreads = 1024

// NewWalk returns a walk that is never cut in a tree that stands still and has at most
// so many processes and threads, RLIMIT_NPROC: each is named once as a thread, and once
// more as a child if it is a process.
func NewWalk(limit int64) *Walk {
	return &Walk{proc: "/proc", left: int(2*min(max(limit, 0), 1<<22)) + ownThreads} // 1<<22: PID_MAX_LIMIT
}

// take reports whether there is budget for one more name, and takes it.
func (w *Walk) take() bool {
	if w.left == 0 {
		w.Cut = true
		return false
	}
	w.left--
	return true
}

// Descendants lists the live descendants of pid, parents first.
func (w *Walk) Descendants(pid int) []int {
	var out []int
	queue := []int{pid}
	for len(queue) > 0 && !w.Cut {
		kids := w.Children(queue[0])
		queue = append(queue[1:], kids...)
		out = append(out, kids...)
	}
	return out
}

// Children lists the children of all threads of pid.
func (w *Walk) Children(pid int) (out []int) {
	dir := w.proc + "/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer tasks.Close()
	for {
		names, err := tasks.Readdirnames(64)
		if err != nil {
			return out
		}
		for _, t := range names {
			if !w.take() {
				return out
			}
			out = w.childrenOf(dir+"/"+t, out)
		}
	}
}

// childrenOf appends the children of the thread with that folder.
func (w *Walk) childrenOf(dir string, out []int) []int {
	f, err := os.Open(dir + "/children")
	if err != nil {
		w.Missed = true
		return out
	}
	defer f.Close()
	words := bufio.NewScanner(f)
	words.Split(bufio.ScanWords)
	for words.Scan() {
		if n, err := strconv.Atoi(words.Text()); err == nil {
			if !w.take() {
				return out
			}
			out = append(out, n)
		}
	}
	w.Missed = w.Missed || words.Err() != nil
	return out
}
