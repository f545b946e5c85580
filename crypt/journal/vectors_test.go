package journal

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"palyra/internal/fault"
)

var update = flag.Bool("update", false, "write new vectors, with new keys")

const vectorDir = "../../conformance/vectors/journal"

// vector is a file of conformance/vectors: header lines "name: value", an empty
// line, and the bytes, in base64 if the header says so.
type vector struct {
	name   string
	header map[string]string
	order  []string
	body   []byte
}

func newVector(name string, body []byte, kv ...string) *vector {
	v := &vector{name: name, header: make(map[string]string), body: body}
	for i := 0; i < len(kv); i += 2 {
		v.header[kv[i]] = kv[i+1]
		v.order = append(v.order, kv[i])
	}
	return v
}

func (v *vector) write(t testing.TB) {
	t.Helper()
	var b bytes.Buffer
	for _, k := range v.order {
		fmt.Fprintf(&b, "%s: %s\n", k, v.header[k])
	}
	b.WriteByte('\n')
	if v.header["encoding"] == "base64" {
		e := base64.StdEncoding.EncodeToString(v.body)
		for len(e) > 0 {
			n := min(len(e), 100)
			b.WriteString(e[:n] + "\n")
			e = e[n:]
		}
	} else {
		b.Write(v.body)
	}
	if err := os.WriteFile(filepath.Join(vectorDir, v.name+".txt"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readVectors(t testing.TB) []*vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(vectorDir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	var out []*vector
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, body, ok := bytes.Cut(b, []byte("\n\n"))
		if !ok {
			t.Fatalf("%s: no empty line", f)
		}
		v := newVector(strings.TrimSuffix(filepath.Base(f), ".txt"), body)
		for line := range strings.SplitSeq(string(head), "\n") {
			k, val, ok := strings.Cut(line, ": ")
			if !ok {
				t.Fatalf("%s: header line %q", f, line)
			}
			v.header[k] = val
		}
		if v.header["encoding"] == "base64" {
			if v.body, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(string(body), "\n", "")); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
		}
		out = append(out, v)
	}
	return out
}

// TestVectors reads conformance/vectors/journal: what others may test their
// reader of our formats with.
func TestVectors(t *testing.T) {
	if *update {
		writeVectors(t)
	}
	seen := make(map[string]int)
	for _, v := range readVectors(t) {
		seen[v.header["kind"]]++
		t.Run(v.name, func(t *testing.T) {
			var got string
			switch v.header["kind"] {
			case "checkpoint":
				c, err := OpenCheckpoint(v.body, v.header["vkey"])
				got = fmt.Sprintf("size %d", c.Size)
				if err != nil {
					got = "refused"
				}
			case "bundle":
				n, err := strconv.Atoi(v.header["entries"])
				if err != nil {
					t.Fatal(err)
				}
				leaves, err := decodeBundle(v.body, n)
				got = fmt.Sprintf("first %q", append(leaves, nil)[0])
				if err != nil {
					got = "refused"
				}
			case "content":
				slots, err := decodeContentHead(v.body, 256, int64(len(v.body)))
				got = "refused"
				if err == nil {
					got = fmt.Sprintf("length %d", slots[1].length)
				}
			case "wal":
				w, err := newWAL(&memory{b: v.body}, int64(len(v.body)))
				var st *state
				if err == nil {
					st, err = w.load(t.TempDir(), OneKey(v.header["vkey"]), nil, nil)
				}
				if got = fault.ReasonOf(err); err == nil {
					got = fmt.Sprintf("size %d, torn %d", st.tree.size, st.torn)
				}
			}
			if got != v.header["expect"] {
				t.Errorf("got %q, want %q", got, v.header["expect"])
			}
		})
	}
	for _, k := range []string{"checkpoint", "bundle", "content", "wal"} {
		if seen[k] < 3 {
			t.Errorf("%d vectors of kind %q", seen[k], k)
		}
	}
}

func writeVectors(t *testing.T) {
	s, file, ends := written(t)
	vkey, other := s.ring.Log().VKey(), newHouse(t)
	note := string(s.ring.Log().SignCheckpoint(5, [32]byte{1, 2, 3}))
	foreign := string(other.ring.Log().SignCheckpoint(5, [32]byte{1, 2, 3}))
	line := note[strings.Index(note, "\u2014"):]
	for _, c := range []struct{ name, expect, body string }{
		{"good", "size 5", note},
		{"other-key", "refused", foreign},
		{"changed-size", "refused", strings.Replace(note, "\n5\n", "\n6\n", 1)},
		{"size-with-zero", "refused", strings.Replace(note, "\n5\n", "\n05\n", 1)},
		{"extension-line", "refused", strings.Replace(note, "\n\n", "\nextra\n\n", 1)},
		{"two-signatures", "refused", note + foreign[strings.Index(foreign, "\u2014"):]},
		{"same-signature-twice", "refused", note + line},
		{"no-signature", "refused", note[:strings.Index(note, "\u2014")]},
		{"carriage-return", "refused", strings.ReplaceAll(note, "\n", "\r\n")},
		{"no-last-newline", "refused", strings.TrimSuffix(note, "\n")},
		{"text-before", "refused", "x\n" + note},
		{"empty", "refused", ""},
	} {
		newVector("checkpoint-"+c.name, []byte(c.body), "kind", "checkpoint", "expect", c.expect, "vkey", vkey).write(t)
	}
	good := encodeBundle([][]byte{[]byte("one"), []byte("two")})
	for _, c := range []struct {
		name, expect, n string
		body            []byte
	}{
		{"good", `first "one"`, "2", good},
		{"one-missing", "refused", "3", good},
		{"one-too-many", "refused", "1", good},
		{"cut", "refused", "2", good[:len(good)-1]},
		{"empty-entry", "refused", "2", append([]byte{0, 0}, good[5:]...)},
		{"empty", "refused", "1", nil},
	} {
		newVector("bundle-"+c.name, c.body, "kind", "bundle", "expect", c.expect, "entries", c.n, "encoding", "base64").write(t)
	}
	contents := make([][]byte, tileWidth)
	contents[1] = []byte("content of entry 257")
	cf := contentFile(256, contents)
	sized := bytes.Clone(cf)
	binary.BigEndian.PutUint32(sized[12+8:], 1<<32-2)
	binary.BigEndian.PutUint32(sized[contentHead-4:], crcOf(sized[:contentHead-4]))
	for _, c := range []struct {
		name, expect string
		body         []byte
	}{
		{"good", "length 20", cf},
		{"cut", "refused", cf[:len(cf)-1]},
		{"other-first", "refused", contentFile(0, contents)},
		{"huge-length", "refused", sized},
	} {
		newVector("content-"+c.name, c.body, "kind", "content", "expect", c.expect, "encoding", "base64").write(t)
	}
	flipped := bytes.Clone(file)
	flipped[ends[2]+40] ^= 1
	zeroed := bytes.Clone(file)
	at := (ends[4]/sectorBytes + 1) * sectorBytes
	clear(zeroed[at : at+sectorBytes])
	for _, c := range []struct {
		name, expect string
		body         []byte
	}{
		{"good", "size 5, torn 0", file},
		{"torn-head", "size 4, torn 20", file[:ends[4]+20]},
		{"torn-body", "size 4, torn 200", file[:ends[4]+200]},
		{"torn-sector", fmt.Sprintf("size 4, torn %d", ends[5]-ends[4]), zeroed},
		{"zeros-after-the-end", "size 5, torn 100", append(bytes.Clone(file), make([]byte, 100)...)},
		{"flipped", "journal_wal_corrupt", flipped},
		{"record-missing", "journal_wal_corrupt", append(bytes.Clone(file[:ends[1]]), file[ends[2]:]...)},
		{"text-after-the-end", "journal_wal_corrupt", append(bytes.Clone(file), "hello"...)},
		{"header-cut", "journal_wal_corrupt", file[:ends[0]-1]},
	} {
		newVector("wal-"+c.name, c.body, "kind", "wal", "expect", c.expect, "vkey", vkey, "encoding", "base64").write(t)
	}
}

// contentFile returns the content file for entries first, first+1, …
func contentFile(first uint64, contents [][]byte) []byte {
	var places []place
	for _, c := range contents {
		places = append(places, place{contentLen: len(c), sum: crcOf(c)})
	}
	return append(encodeContentHead(first, places), bytes.Join(contents, nil)...)
}
