package git

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Bounds of refs.
const (
	maxRefs   = 50_000
	maxLevels = 16
)

// MaxRefName bounds the name of a branch or tag, in bytes: a longer one is odd.
const MaxRefName = 1000

// ReadFile reads a small file of a repository.
func ReadFile(f Folder, name string, most int64) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(b)) > most {
		err = wrap(ErrTooLarge, "%s has more than %d bytes", name, most)
	}
	return b, err
}

// Ref is where a ref is and what it stands for.
type Ref struct {
	ID     ID
	Loose  bool   // a file of its own
	Packed bool   // packed-refs has it, too or instead
	Odd    string // why it can't be used, "" if it can
}

// Refs is the refs of a repository.
type Refs struct {
	Names  map[string]Ref
	Packed []byte // the file packed-refs, nil if there is none

	// Others are the other refs that packed-refs has, as text: nothing of them is checked.
	Others map[string]string
}

// ReadRefs reads the refs below refs/heads/ and refs/tags/. packed bounds packed-refs, in bytes.
func ReadRefs(f Folder, packed int64) (*Refs, error) {
	r := &Refs{Names: make(map[string]Ref), Others: make(map[string]string)}
	b, err := ReadFile(f, "packed-refs", packed)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		r.Packed = b
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' || line[0] == '^' {
			continue
		}
		hex, name, _ := strings.Cut(line, " ")
		if !ours(name) {
			if !strings.HasPrefix(name, "refs/") || CheckPath(name) != nil || len(r.Others) == maxRefs {
				return nil, bad("packed-refs with %.60q", name)
			}
			r.Others[name] = hex
			continue
		}
		id, err := ParseID(hex)
		if err != nil {
			return nil, err
		}
		if r.Names[name] = (Ref{ID: id, Packed: true, Odd: oddName(name)}); len(r.Names) > maxRefs {
			return nil, wrap(ErrTooLarge, "more than %d refs", maxRefs)
		}
	}
	for _, in := range []string{"refs/heads", "refs/tags"} {
		if err := r.loose(f, in, 0); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// ours reports whether a ref is a branch or a tag.
func ours(name string) bool {
	return strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/")
}

func (r *Refs) loose(f Folder, in string, level int) error {
	if level > maxLevels {
		return wrap(ErrTooLarge, "refs in more than %d folders", maxLevels)
	}
	names, err := f.Names(in)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		name := in + "/" + n.Name
		if strings.HasPrefix(n.Name, ".") || strings.HasSuffix(n.Name, ".lock") {
			continue // git passes over them, too
		}
		if n.Folder {
			if err := r.loose(f, name, level+1); err != nil {
				return err
			}
			continue
		}
		ref := r.Names[name]
		ref.Loose, ref.Odd = true, oddName(name)
		b, err := ReadFile(f, name, 4096)
		if err != nil {
			ref.Odd = "it is no plain file"
		} else if id, err := ParseID(strings.TrimSuffix(string(b), "\n")); err == nil && len(b) == 41 {
			ref.ID = id
		} else {
			ref.Odd = "it holds no object id"
		}
		if r.Names[name] = ref; len(r.Names) > maxRefs {
			return wrap(ErrTooLarge, "more than %d refs", maxRefs)
		}
	}
	return nil
}

// PackedWithout returns the file packed-refs without some names.
func (r *Refs) PackedWithout(names map[string]bool) []byte {
	var out bytes.Buffer
	gone := false
	for line := range strings.Lines(string(r.Packed)) {
		if !strings.HasPrefix(line, "^") { // else it is about the line above
			_, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			gone = line[0] != '#' && names[name]
		}
		if !gone {
			out.WriteString(line)
		}
	}
	return out.Bytes()
}

// CheckRef refuses what is no name of a branch or tag: git-check-ref-format(1).
func CheckRef(name string) error {
	if odd := oddName(name); odd != "" {
		return bad("%.100q: %s", name, odd)
	}
	return nil
}

func oddName(name string) string {
	short := strings.TrimPrefix(strings.TrimPrefix(name, "refs/heads/"), "refs/tags/")
	switch {
	case !ours(name) || short == "" || len(name) > MaxRefName:
		return "no branch or tag"
	case strings.ContainsAny(name, " ~^:?*[\\\x7f"), strings.Contains(name, ".."), strings.Contains(name, "@{"),
		strings.HasSuffix(name, "."), short[0] == '-', short == "HEAD", short == "@":
		return "git gives no ref this name"
	}
	for e := range strings.SplitSeq(name, "/") {
		if e == "" || e[0] == '.' || strings.HasSuffix(e, ".lock") || len(e) > 200 {
			return "git gives no ref this name"
		}
	}
	for i := range len(name) {
		if name[i] < ' ' {
			return "git gives no ref this name"
		}
	}
	return ""
}

// Head is the file HEAD: a branch, or the commit that is checked out without one.
type Head struct {
	Branch string // refs/heads/…
	ID     ID
}

// String is the file without its newline.
func (h Head) String() string {
	if h.Branch != "" {
		return "ref: " + h.Branch
	}
	return h.ID.String()
}

// ParseHead reads what String returns.
func ParseHead(s string) (h Head, err error) {
	if name, ok := strings.CutPrefix(s, "ref: "); ok {
		if h.Branch = name; !strings.HasPrefix(name, "refs/heads/") {
			return h, bad("HEAD is no branch")
		}
		return h, CheckRef(name)
	}
	h.ID, err = ParseID(s)
	return h, err
}

// ReadHead reads HEAD.
func ReadHead(f Folder) (Head, error) {
	b, err := ReadFile(f, "HEAD", 4096)
	if err != nil {
		return Head{}, fmt.Errorf("HEAD: %w", err)
	}
	return ParseHead(strings.TrimSuffix(string(b), "\n"))
}

// Check refuses a repository that is to be read in another way than this package's: by its
// settings, and by what else is in the way.
func Check(f Folder) error {
	b, err := ReadFile(f, "config", 1<<20)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for s, err := range settings(string(b)) {
		if err != nil {
			return err
		}
		switch {
		case s.key == "core.repositoryformatversion" && s.value != "0" && s.value != "1",
			s.key == "core.bare" && s.value != "false",
			s.key == "core.worktree",
			s.key == "core.sparsecheckout" && s.value != "false",
			s.key == "core.splitindex" && s.value != "false",
			s.key == "extensions.objectformat" && s.value != "sha1",
			s.key == "extensions.refstorage" && s.value != "files",
			strings.HasPrefix(s.key, "extensions.") && !strings.HasSuffix(s.key, ".objectformat") && !strings.HasSuffix(s.key, ".refstorage") &&
				s.key != "extensions.noop" && s.key != "extensions.preciousobjects" && s.key != "extensions.worktreeconfig",
			strings.HasPrefix(s.key, "include."), strings.HasPrefix(s.key, "includeif."):
			return wrap(ErrUnsupported, "a repository with %.60s = %.60q", s.key, s.value)
		}
	}
	for _, name := range []string{"commondir", "objects/info/alternates", "objects/info/http-alternates", "info/grafts"} {
		file, err := f.Open(name)
		if err == nil {
			file.Close()
			return wrap(ErrUnsupported, "a repository with %s", name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Under returns the name of what the repository is in the middle of, such as a merge: "" if of
// nothing.
func Under(f Folder) (string, error) {
	names, err := f.Names("")
	if err != nil {
		return "", err
	}
	for _, n := range names {
		switch n.Name {
		case "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "rebase-merge", "rebase-apply", "sequencer":
			return n.Name, nil
		}
	}
	return "", nil
}

// Programs returns the words of those settings by which a repository has git run programs, such as
// filters and aliases, and the folder that its core.hooksPath names, "" for git's own. A word need
// not be a program. Files that it includes are words, too, but what they say isn't read.
func Programs(f Folder) (words []string, hooks string, err error) {
	for _, name := range []string{"config", "config.worktree"} {
		b, err := ReadFile(f, name, 1<<20)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", name, err)
		}
		for s, err := range settings(string(b)) {
			if err != nil {
				return nil, "", err
			}
			switch {
			case s.key == "core.hookspath":
				hooks = s.raw
			case s.key == "include.path", s.key == "includeif.path":
				// A file of more settings, relative to the one that names it.
				if !path.IsAbs(s.raw) {
					s.raw = path.Join(".git", s.raw)
				}
				words = append(words, s.raw)
			case !runsNothing(s.key):
				words = append(words, strings.FieldsFunc(s.raw, func(r rune) bool { return strings.ContainsRune(" \t!;&|<>()'`$", r) })...)
			}
		}
	}
	return words, hooks, nil
}

// runsNothing reports whether a setting is one of those that every repository has and that name no
// program. Of their sections these do: what updates a submodule, and the other side of a remote,
// which git starts on this host if it's a folder here.
func runsNothing(key string) bool {
	switch section, _, _ := strings.Cut(key, "."); section {
	case "remote", "branch", "url", "submodule", "user":
		return key != "submodule.update" && key != "remote.uploadpack" && key != "remote.receivepack"
	}
	return false
}

type setting struct {
	key, value string
	raw        string // value in its own case, without quotes and backslashes
}

var unquoted = strings.NewReplacer(`\\`, `\`, `\"`, "", `"`, "")

// settings reads a configuration: git-config(1). Names are in lower case, values without quotes;
// a section's second name is left out.
func settings(text string) func(yield func(setting, error) bool) {
	return func(yield func(setting, error) bool) {
		section := ""
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
			line = strings.TrimSpace(line)
			if rest, ok := strings.CutPrefix(line, "["); ok {
				name, after, ok := strings.Cut(rest, "]")
				if strings.Contains(name, `"`) { // its second name may hold a bracket
					at := strings.LastIndex(rest, `"]`)
					if ok = at >= 0; ok {
						name, after = rest[:at], rest[at+2:]
					}
				}
				if !ok {
					yield(setting{}, bad("config: %.60q", line))
					return
				}
				section, _, _ = strings.Cut(strings.ToLower(name), " ")
				line = strings.TrimSpace(after)
			}
			if line == "" || line[0] == '#' || line[0] == ';' {
				continue
			}
			key, value, has := strings.Cut(line, "=")
			if !has {
				value = "true"
			}
			if at := strings.IndexAny(value, "#;"); at >= 0 && !strings.Contains(value, `"`) {
				value = value[:at]
			}
			value = strings.TrimSpace(value)
			raw := unquoted.Replace(value)
			value = strings.ToLower(strings.Trim(value, `"`))
			if !yield(setting{section + "." + strings.ToLower(strings.TrimSpace(key)), value, raw}, nil) {
				return
			}
		}
	}
}
