package policy

import (
	"embed"
	"io/fs"
	"path"
	"slices"
)

//go:embed hosts
var lists embed.FS

// HostLists returns the files of lists of hosts to begin with, by file name: what an ecosystem
// needs, with reserved names in place of an operator's. No set has them by itself.
func HostLists() map[string][]byte {
	files := map[string][]byte{}
	entries, err := fs.ReadDir(lists, "hosts")
	for _, e := range entries {
		if err == nil {
			files[e.Name()], err = fs.ReadFile(lists, path.Join("hosts", e.Name()))
		}
	}
	if err != nil {
		panic("policy: internal error: " + err.Error()) // embedded
	}
	return files
}

//go:embed preset
var presets embed.FS

// shared are the files of the built-in set that each preset takes as they are, cedar and
// tests; the rest of it stands in preset/NAME. docs/formats/presets.md says what each does.
var shared = map[string][]string{
	"ci":     {"10-read-only", "20-roles", "23-models", "29-own-secrets", "38-notify", "50-environment"},
	"coding": {"10-read-only", "20-roles", "22-answers", "23-models", "24-memory", "27-servers", "28-secrets", "29-own-secrets", "35-reach", "38-inputs", "38-notify", "39-signals", "50-environment"},
	"strict": {"10-read-only", "20-roles", "23-models", "27-servers", "28-secrets", "29-own-secrets", "38-notify", "40-interpreters", "50-environment"},
}

// Presets returns the names of the presets, sorted.
func Presets() []string { return []string{"ci", "coding", "strict"} }

// PresetFiles returns the files of a preset by name, or with "" those of the built-in set;
// false if there is no such preset. They are a policy directory, to copy and change.
func PresetFiles(name string) (map[string][]byte, bool) {
	files := map[string][]byte{}
	add := func(from fs.FS, dir string, want func(string) bool) {
		entries, err := fs.ReadDir(from, dir)
		for _, e := range entries {
			if err == nil && want(e.Name()) {
				files[e.Name()], err = fs.ReadFile(from, path.Join(dir, e.Name()))
			}
		}
		if err != nil {
			panic("policy: internal error: " + err.Error()) // embedded
		}
	}
	if name == "" {
		add(embedded, "default", func(string) bool { return true })
		return files, true
	}
	take, ok := shared[name]
	if !ok {
		return nil, false
	}
	add(embedded, "default", func(file string) bool {
		return file == SchemaFile || slices.ContainsFunc(take, func(stem string) bool { return file == stem+".cedar" || file == stem+".test.json" })
	})
	add(presets, "preset/"+name, func(string) bool { return true })
	return files, true
}
