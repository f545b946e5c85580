package journal

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/internal/durable"
)

// publish writes the files that readers of the tlog-tiles layout need for the whole log.
// The caller holds sealing, gates.seal, writer and the log, and may have staged some.
// Complete tiles are always durable; the partial ones and the checkpoint only if asked for,
// since they can be made again.
func (j *Journal) publish(lasting bool, st *staged) error {
	if j.broken != nil {
		return j.broken
	}
	if j.tree.size == 0 || j.tree.size == j.published && !lasting && st == nil {
		return nil
	}
	if err := j.flush(); err != nil { // never publish what a power failure could take back
		return err
	}
	j.leaveWord()
	for {
		if err := j.finish(st); err != nil {
			return err
		}
		if err := j.sweep(st); err != nil {
			return err
		}
		if j.tree.size-j.tree.base < tileWidth {
			break
		}
		var err error
		if st, err = j.stage(); err != nil {
			return err
		}
	}
	put := func(name string, data []byte) error { return j.replaceFile("publish:"+stem(name), name, data) }
	if lasting {
		put = func(name string, data []byte) error { return j.writeFile("publish:"+stem(name), name, data) }
	}
	n, w := int64(j.tree.base/tileWidth), int(j.tree.size-j.tree.base)
	bundle, tile := bundlePath(n, w), tilePath(tlog.Tile{H: tileHeight, N: n, W: w})
	if w > 0 {
		if err := j.publishHead(bundle, tile, put); err != nil {
			return err
		}
	}
	if err := put(checkpointFile, j.note); err != nil {
		return err
	}
	j.mu.Lock()
	j.published = j.tree.size
	j.mu.Unlock()
	for _, name := range []string{bundle, tile} {
		if err := keepOnly(filepath.Join(j.dir, filepath.FromSlash(partialDir(name))), w); w > 0 && err != nil {
			return err
		}
	}
	return nil
}

// publishHead writes the partial entry bundle and the partial tile of leaf
// hashes at the end of the log. Those of higher levels stand since seal.
func (j *Journal) publishHead(bundle, tile string, put func(string, []byte) error) error {
	if err := put(bundle, j.wal.leaves); err != nil {
		return err
	}
	b, err := j.headTile()
	if err != nil {
		return err
	}
	return put(tile, b)
}

// stem shortens a path to the part that a step's name needs.
func stem(name string) string {
	switch {
	case strings.HasPrefix(name, "tile/entries/"):
		return "entries"
	case strings.HasPrefix(name, "tile/"):
		return "tile"
	}
	return name
}

// headTile returns the partial tile of leaf hashes at the end of the log.
func (j *Journal) headTile() ([]byte, error) {
	return tlog.ReadTileData(tlog.Tile{H: tileHeight, N: int64(j.tree.base / tileWidth), W: int(j.tree.size - j.tree.base)}, j.tree)
}

// Complete tiles are moved out of the write-ahead file by stage and finish. Order,
// and why a crash between any two steps is harmless:
//
//  1. entry bundles and contents, from the write-ahead file
//  2. tiles, lowest level first; a tile that is there already must be equal
//  3. the checkpoint of exactly these tiles: from here on readers may look for them
//  4. the new write-ahead file, beside the old one, with the entries appended until then
//  5. later entries are added to it, and it is renamed over the old one: from here on the
//     log needs the tiles
//  6. partial tiles that complete ones replace are removed
//
// Everything is flushed before the next step, and until step 5 the old
// write-ahead file still holds all of it. Appends go on meanwhile, except during
// step 5, which is short: two flushes of little.

// staged has the files that stage has written and finish makes part of the log.
type staged struct {
	old      *header // of the write-ahead file that this was made from
	from, to uint64
	note     []byte // the checkpoint at to
	tiles    []tlog.Tile
	open     []uint64 // entries that were open at to
	next     uint64   // the first entry of the first record not in file, or holding to
	at       int64    // the place of that record in the write-ahead file

	file   *durable.Staged // the new write-ahead file
	header *header         // of file
	places []place         // of the entries in file
	leaves []byte          // of the entries in file
	end    int64           // of file
}

// discard takes back a new write-ahead file that is not in its place.
func (st *staged) discard() {
	if st != nil {
		st.file.Discard()
	}
}

// stage is steps 1 to 4 for all that is complete. The caller holds sealing and
// gates.seal and has caught up since, and all of it is durable. It returns nil if there is none.
func (j *Journal) stage() (*staged, error) {
	j.mu.RLock()
	tree, key, w := *j.tree, j.key, &wal{file: j.wal.file, header: j.wal.header, end: j.wal.start, size: j.wal.end}
	j.mu.RUnlock()
	st := &staged{old: w.header, from: tree.base, to: tree.size / tileWidth * tileWidth}
	if st.from == st.to {
		return nil, nil
	}
	if err := j.stageEntries(w, st); err != nil {
		return nil, err
	}
	st.tiles = tlog.NewTiles(tileHeight, int64(st.from), int64(st.to))
	for _, t := range st.tiles {
		b, err := tlog.ReadTileData(t, &tree)
		if err != nil {
			return nil, err
		}
		if err := j.writeOnce("seal:tile", tilePath(t), all(b)); err != nil {
			return nil, err
		}
	}
	root, err := tree.rootAt(st.to)
	if err != nil {
		return nil, err
	}
	st.note = key.SignCheckpoint(st.to, root)
	if err := j.writeFile("seal:checkpoint", checkpointFile, st.note); err != nil {
		return nil, err
	}
	j.mu.Lock()
	j.published = st.to
	j.mu.Unlock()
	edge, err := tree.ReadHashes(edgeIndexes(st.to))
	if err != nil {
		return nil, err
	}
	if err := j.draft(st, edge); err != nil {
		return nil, err
	}
	return st, nil
}

// draft is step 4.
func (j *Journal) draft(st *staged, edge []tlog.Hash) (err error) {
	if st.header, err = newHeader(st.to, edge, st.open, st.note); err != nil {
		return err
	}
	j.mu.RLock()
	w := &wal{file: j.wal.file, header: j.wal.header, size: j.wal.end}
	j.mu.RUnlock()
	j.step("seal:wal:begin")
	st.file, err = durable.Stage(filepath.Join(j.dir, walFile), func(file io.Writer) error {
		b := st.header.encode()
		st.end = int64(len(b))
		if _, err := file.Write(b); err != nil {
			return err
		}
		return st.follow(w, file)
	}, 0o600, func(s string) { j.step("seal:wal:" + s) })
	return err
}

// follow adds the groups behind the staged ones to file, which is the new one at its end, and
// moves on behind them.
func (st *staged) follow(w *wal, file io.Writer) error {
	w.end = st.at
	next := st.next
	out := bufio.NewWriterSize(file, 1<<16)
	err := w.scanFrom(next, func(g *group, _ []place) error {
		done := 0 // entries of g that are in tiles
		if next < st.to {
			done = int(min(st.to-next, uint64(len(g.entries))))
		}
		tail := &group{first: next + uint64(done), entries: g.entries[done:], note: g.note}
		next += uint64(len(g.entries))
		if len(tail.entries) == 0 {
			return nil
		}
		b, places := st.header.encodeGroup(st.end, tail)
		st.end += int64(len(b))
		st.places, st.leaves = append(st.places, places...), appendLeaves(st.leaves, tail)
		_, err := out.Write(b)
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	st.next, st.at = next, w.end
	return err
}

// all is a fill that writes b.
func all(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// stageEntries writes entry bundles and contents up to entry st.to.
func (j *Journal) stageEntries(w *wal, st *staged) error {
	set := make(map[uint64]struct{})
	for _, i := range w.header.open {
		set[i] = struct{}{}
	}
	var leaves [][]byte
	var places []place
	next := w.header.base
	st.at = -1
	err := w.scan(func(g *group, ps []place) error {
		if st.at < 0 && next+uint64(len(g.entries)) > st.to {
			st.next, st.at = next, w.end
		}
		for i := range g.entries {
			if next == st.to {
				return nil
			}
			e := &g.entries[i]
			if err := track(set, e, next); err != nil {
				return corrupt("wal_corrupt", err)
			}
			leaves, places = append(leaves, bytes.Clone(e.Leaf)), append(places, ps[i])
			next++
			if len(leaves) < tileWidth {
				continue
			}
			n, first := int64(next/tileWidth)-1, next-tileWidth
			contents := func(f io.Writer) error {
				if _, err := f.Write(encodeContentHead(first, places)); err != nil {
					return err
				}
				return copyContents(f, first, w.file, places)
			}
			if err := j.writeOnce("seal:content", contentPath(n), contents); err != nil {
				return err
			}
			if err := j.writeOnce("seal:entries", bundlePath(n, tileWidth), all(encodeBundle(leaves))); err != nil {
				return err
			}
			leaves, places = nil, nil
		}
		return nil
	})
	if st.at < 0 {
		st.next, st.at = next, w.end
	}
	st.open = openList(set)
	return err
}

// finish is step 5: it makes the staged files part of the log. The caller holds sealing,
// gates.seal, writer and the log. nil is nothing to do.
func (j *Journal) finish(st *staged) error {
	if st == nil {
		return nil
	}
	defer st.discard()
	if st.old != j.wal.header {
		return corrupt("wal_replaced", errors.New("the write-ahead file was replaced by a process without the lock for that"))
	}
	nt, err := j.tree.rebase(st.to)
	if err != nil {
		return err
	}
	was := st.end
	if err := st.follow(&wal{file: j.wal.file, header: j.wal.header, size: j.wal.end}, io.NewOffsetWriter(st.file.File, was)); err != nil {
		return fmt.Errorf("write new write-ahead file: %w", err)
	}
	if st.end > was {
		if err := durable.Datasync(st.file.File); err != nil {
			return fmt.Errorf("sync new write-ahead file: %w", err)
		}
		j.step("seal:wal:extended")
	}
	return j.swap(st, nt)
}

// move is steps 1 to 6 in the background, for a log that its owner doesn't publish. A
// failure is reported to no caller: the next move, Close and Publish try again. If another
// process is moving, there is nothing to do.
func (j *Journal) move() {
	j.sealing.must()
	defer j.sealing.give()
	st := j.draftMove()
	defer st.discard()
	if j.replace(st) {
		_ = j.sweep(st)
	}
	j.gates.seal.Release()
}

// draftMove is the part of move in which appends go on. It takes gates.seal, which
// the caller gives back.
func (j *Journal) draftMove() *staged {
	if free, err := j.gates.seal.Try(durable.Exclusive); !free || err != nil {
		return nil // at work, or closed
	}
	st, _ := j.stageAll(context.Background())
	return st
}

// replace is finish for move, and says whether it was done.
func (j *Journal) replace(st *staged) bool {
	j.writer.must()
	defer j.leave()
	j.moving = false
	if st == nil || j.take(context.Background()) != nil {
		return false
	}
	defer j.yield()
	return j.finish(st) == nil
}

// swap puts the new write-ahead file, which continues the tree nt, in the place
// of the old one.
func (j *Journal) swap(st *staged, nt *tree) error {
	placed, err := st.file.Commit()
	if !placed {
		return err
	}
	var f *os.File
	var info os.FileInfo
	if err == nil {
		f, err = os.OpenFile(filepath.Join(j.dir, walFile), os.O_RDWR, 0)
	}
	if err == nil {
		if info, err = f.Stat(); err != nil {
			f.Close()
		}
	}
	if err != nil {
		// The old descriptor leads to a file without a name now. Nothing more may
		// be appended through it; reading goes on until Close.
		j.broken = fmt.Errorf("begin new write-ahead file: %w", err)
		return j.broken
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.retired = append(j.retired, j.wal)
	j.wal = &wal{file: disk{f}, info: info, header: st.header, start: int64(len(st.header.encode())), end: st.end, places: st.places, leaves: st.leaves}
	j.tree = nt
	j.leaveWord()
	return nil
}

// leave gives writer back and closes the write-ahead files that were replaced. The last
// descriptor of a file without a name takes its blocks with it, some 10 ms for 5 MB where
// the file system tells the disk: no append must wait for that. No reader uses them any
// more: reading is under mu, and stage reads the one that only it replaces.
func (j *Journal) leave() {
	dead := j.retired
	j.retired = nil
	j.writer.give()
	closeAll(dead)
}

func closeAll(dead []*wal) {
	for _, w := range dead {
		w.close()
	}
}

// sweep removes partial tiles that are no longer the log's, and temporary files. It is
// housekeeping: the next sweep removes the leftovers of a crash. The caller holds sealing.
// nil is nothing to do.
func (j *Journal) sweep(st *staged) error {
	if st == nil {
		return nil
	}
	dirs := make(map[string]bool)
	for _, t := range st.tiles {
		path := filepath.Join(j.dir, filepath.FromSlash(tilePath(t)))
		dirs[filepath.Dir(path)] = true
		if t.W < tileWidth {
			if err := keepOnly(partialDir(path), t.W); err != nil {
				return err
			}
			continue
		}
		if err := os.RemoveAll(path + ".p"); err != nil {
			return err
		}
	}
	for n := st.from / tileWidth; n < st.to/tileWidth; n++ {
		for _, p := range []string{bundlePath(int64(n), tileWidth), contentPath(int64(n))} {
			path := filepath.Join(j.dir, filepath.FromSlash(p))
			dirs[filepath.Dir(path)] = true
			if err := os.RemoveAll(path + ".p"); err != nil {
				return err
			}
		}
	}
	for d := range dirs {
		if err := durable.RemoveTemps(d); err != nil {
			return err
		}
	}
	j.step("seal:swept")
	return nil
}

// keepOnly removes partial tiles of other widths from dir, and temporary files.
func keepOnly(dir string, width int) error {
	es, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range es {
		if e.Name() == strconv.Itoa(width) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
