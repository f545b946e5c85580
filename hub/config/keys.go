package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Key is one key as the struct's tags describe it.
type Key struct {
	// Name is such as "listen.http"; a workspace's is "workspaces.NAME.path".
	Name    string   `json:"name"`
	Env     string   `json:"env,omitempty"`    // the variable that overrides it; "" if none can
	Type    string   `json:"type"`             // string, boolean, integer, duration, size, mode, list
	Unit    string   `json:"unit,omitempty"`   //
	Default string   `json:"default"`          // as it would be written; "" is the empty string
	OneOf   []string `json:"one_of,omitempty"` // if there is a list of values
	// Aka has "other=value" for other names of values, which are read and not kept.
	Aka     []string `json:"aka,omitempty"`
	Min     string   `json:"min,omitempty"`    //
	Max     string   `json:"max,omitempty"`    //
	Reload  bool     `json:"reload"`           // SIGHUP applies it; others need a restart
	Doc     string   `json:"doc"`              //
	Cost    string   `json:"weakening_costs"`  // what a weaker value costs; "" if none is weaker
	Floors  []Floor  `json:"floors,omitempty"` //
	section string   // the table it stands in, "" for the top
	index   []int    // of the field, for reflect; in a Workspace for its keys
	each    bool     // it stands in every table of Workspaces, or of Models
}

// ownName stands in a Key for the name that the operator chose.
const ownName = "NAME"

// named are the sections whose tables the operator names, and the keys that each such table needs.
var named = map[string][]string{"workspaces": {"path"}, "models": {"provider"}}

// tables returns the map of c for such a section.
func (c *Config) tables(section string) reflect.Value {
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("key") == section {
			return reflect.ValueOf(c).Elem().Field(i)
		}
	}
	panic("config: internal error: no section " + section)
}

// Keys returns every key, in the order of the struct.
func Keys() []Key {
	keys := walk(reflect.TypeFor[Config](), "", nil, false)
	for i := range keys {
		for _, f := range Floors() {
			if f.Key == keys[i].Name {
				keys[i].Floors = append(keys[i].Floors, f)
			}
		}
	}
	return keys
}

// sections returns the tables and what they are for, in order.
func sections() (names, docs []string) {
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		if f := t.Field(i); f.Type.Kind() == reflect.Struct || f.Type.Kind() == reflect.Map {
			if name := f.Tag.Get("key"); name != "" {
				names, docs = append(names, name), append(docs, f.Tag.Get("doc"))
			}
		}
	}
	return names, docs
}

func walk(t reflect.Type, section string, index []int, each bool) []Key {
	var keys []Key
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("key")
		if name == "" {
			continue
		}
		if section != "" {
			name = section + "." + name
		}
		at := append(append([]int(nil), index...), i)
		switch {
		case f.Type.Kind() == reflect.Struct:
			keys = append(keys, walk(f.Type, name, at, false)...)
		case f.Type.Kind() == reflect.Map:
			keys = append(keys, walk(f.Type.Elem(), name+"."+ownName, nil, true)...)
		default:
			k := Key{Name: name, Type: typeName(f.Type), Unit: f.Tag.Get("unit"), Default: f.Tag.Get("default"),
				OneOf: strings.Fields(f.Tag.Get("oneof")), Aka: strings.Fields(f.Tag.Get("aka")), Min: f.Tag.Get("min"), Max: f.Tag.Get("max"),
				Reload: f.Tag.Get("reload") == "yes", Doc: f.Tag.Get("doc"), Cost: f.Tag.Get("cost"),
				section: section, index: at, each: each}
			if !each {
				k.Env = envName(name)
			}
			keys = append(keys, k)
		}
	}
	return keys
}

func envName(key string) string {
	return "PALYRA_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[Mode]():
		return "mode"
	case reflect.TypeFor[List]():
		return "list"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int64:
		return "integer"
	}
	panic(fmt.Sprintf("config: internal error: no key can have type %v", t))
}

// leaf returns the last part of a key's name.
func leaf(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// nearest returns the candidate that a mistyped name most likely meant, "" if
// none is near.
func nearest(name string, candidates []string) string {
	best, least := "", 1+max(2, len(name)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is Levenshtein's: the number of letters to change, add or drop. Names are short;
// one longer than every key is far from all.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
