package powercut

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// straceArgs record what can change a directory, with all bytes, and the names
// of the descriptors.
var straceArgs = []string{"-f", "-q", "-y", "-xx", "-s", "67108864", "-e", "signal=none", "-e",
	"trace=open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,truncate,ftruncate,fallocate,fsync,fdatasync," +
		"sync,syncfs,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat," +
		"copy_file_range,sendfile,splice,mmap"}

var (
	lineOf  = regexp.MustCompile(`^(\d+) +(.*)$`)
	started = regexp.MustCompile(`^(.*) <unfinished \.\.\.>$`)
	resumed = regexp.MustCompile(`^<\.\.\. (\w+) resumed>(.*)$`)
	callOf  = regexp.MustCompile(`^(\w+)\((.*)\) += (-?\d+|\?)`)
)

// ParseTrace reads strace's output and returns the operations below dir, in the order of
// their end, and the bytes written to descriptor 1. A call below dir that it doesn't know
// is an error: nothing may go unnoticed.
func ParseTrace(file, dir string) ([]Op, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	type call struct {
		text  string
		began int
	}
	half := make(map[string]call)
	var ops []Op
	for line := range bytes.Lines(text) {
		m := lineOf.FindStringSubmatch(strings.TrimSuffix(string(line), "\n"))
		if m == nil {
			return nil, fmt.Errorf("strace: line %.100q", line)
		}
		pid, c := m[1], call{m[2], len(ops)}
		if s := started.FindStringSubmatch(c.text); s != nil {
			half[pid] = call{s[1], len(ops)}
			continue
		}
		if r := resumed.FindStringSubmatch(c.text); r != nil {
			c = call{half[pid].text + r[2], half[pid].began}
			delete(half, pid)
		}
		p := callOf.FindStringSubmatch(c.text)
		if p == nil {
			continue // an exit, or a call that its process did not survive
		}
		result, err := strconv.ParseInt(p[3], 10, 64)
		if err != nil || result < 0 {
			continue // did nothing
		}
		op, ok, err := parseCall(p[1], arguments(p[2]), dir, result)
		if err != nil {
			return nil, err
		}
		if ok {
			op.Began, op.Number = c.began, len(ops)
			ops = append(ops, op)
		}
	}
	return ops, nil
}

// arguments splits at commas outside of strings, brackets and <names>.
func arguments(s string) (out []string) {
	depth, from, in := 0, 0, false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"':
			in = !in
		case in:
		case c == '<' || c == '[' || c == '{':
			depth++
		case c == '>' || c == ']' || c == '}':
			depth--
		case c == ',' && depth == 0:
			out = append(out, strings.TrimSpace(s[from:i]))
			from = i + 1
		}
	}
	return append(out, strings.TrimSpace(s[from:]))
}

// bytesOf decodes "\x61\x62".
func bytesOf(s string) ([]byte, error) {
	if strings.HasSuffix(s, "...") {
		return nil, fmt.Errorf("strace cut a string")
	}
	s = strings.Trim(s, `"`)
	out := make([]byte, 0, len(s)/4)
	for ; s != ""; s = s[4:] {
		if len(s) < 4 || s[:2] != `\x` {
			return nil, fmt.Errorf("strace: string %.40q", s)
		}
		b, err := strconv.ParseUint(s[2:4], 16, 8)
		if err != nil {
			return nil, err
		}
		out = append(out, byte(b))
	}
	return out, nil
}

// named returns the path in "7</a/b>" or AT_FDCWD</a>.
func named(arg string) string {
	_, rest, _ := strings.Cut(arg, "<")
	name := strings.TrimSuffix(rest, ">")
	if b, err := bytesOf(name); err == nil && strings.HasPrefix(name, `\x`) {
		return string(b)
	}
	return name
}

func parseCall(name string, args []string, dir string, result int64) (op Op, ok bool, err error) {
	rel := func(path string) (string, bool) {
		r, err := filepath.Rel(dir, path)
		return r, err == nil && r != ".." && !strings.HasPrefix(r, "../")
	}
	at := func(i int) (string, error) {
		// A path argument, after a directory's descriptor if i says so.
		b, err := bytesOf(args[i])
		if err != nil || filepath.IsAbs(string(b)) {
			return string(b), err
		}
		return filepath.Join(named(args[max(i-1, 0)]), string(b)), nil
	}
	path := func(i int) error {
		p, err := at(i)
		if err == nil {
			op.Path, ok = rel(p)
		}
		return err
	}
	fd := func() { op.Path, ok = rel(named(args[0])) }
	gone := func() bool { return strings.HasSuffix(strings.TrimSuffix(args[0], ">"), "(deleted)") }
	switch name {
	case "openat", "open":
		i := map[string]int{"openat": 1, "open": 0}[name]
		if flags := args[i+1]; !strings.Contains(flags, "O_CREAT") {
			if !strings.Contains(flags, "O_TRUNC") {
				return op, false, nil
			}
			op.Kind = "truncate"
			return op, ok, path(i)
		} else if strings.Contains(flags, "O_TRUNC") {
			return op, false, fmt.Errorf("strace: %s with O_CREAT and O_TRUNC is not simulated", name)
		}
		op.Kind = "create"
		err = path(i)
	case "write", "pwrite64":
		op.Kind, op.Off = "write", -1
		fd()
		if strings.HasPrefix(args[0], "1<") {
			op.Kind, ok = "say", true
		}
		if !ok || gone() {
			return op, false, nil
		}
		if op.Data, err = bytesOf(args[1]); err == nil && int64(len(op.Data)) < result {
			err = fmt.Errorf("strace: %d of %d bytes", len(op.Data), result)
		}
		if err == nil {
			op.Data = op.Data[:result]
		}
		if name == "pwrite64" && err == nil {
			op.Off, err = strconv.ParseInt(args[3], 10, 64)
		}
	case "ftruncate":
		op.Kind = "truncate"
		if fd(); ok {
			op.Off, err = strconv.ParseInt(args[1], 10, 64)
		}
		ok = ok && !gone()
	case "fsync", "fdatasync":
		op.Kind = "sync"
		fd()
		ok = ok && !gone()
	case "mkdirat", "mkdir":
		op.Kind = "mkdir"
		err = path(strings.Count(name, "at"))
	case "unlinkat", "unlink", "rmdir":
		op.Kind = "unlink"
		err = path(strings.Count(name, "at"))
	case "renameat", "rename", "renameat2":
		op.Kind = "rename"
		i, j := 1, 3
		if name == "rename" {
			i, j = 0, 1
		}
		if err = path(i); err == nil {
			var to string
			if to, err = at(j); err == nil {
				op.To, _ = rel(to)
			}
		}
	case "mmap":
		if strings.Contains(args[3], "MAP_SHARED") && strings.Contains(args[2], "PROT_WRITE") && strings.Contains(args[4], dir) {
			err = fmt.Errorf("strace: a file of the directory is mapped for writing")
		}
	case "openat2", "sync_file_range": // the latter promises nothing
	default:
		if strings.Contains(strings.Join(args, ","), dir) {
			err = fmt.Errorf("strace: %s below the directory is not simulated", name)
		}
	}
	return op, ok, err
}
