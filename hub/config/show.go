package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Value is one key of a Config as it is in force. It serialises.
type Value struct {
	Key    string `json:"key"`
	Value  string `json:"value"`  // as it would be written, without quotes
	Source string `json:"source"` // "default", "file" or "env"
	Line   int    `json:"line"`   // in the file; 0 if it is not there
	Reload bool   `json:"reload"`
}

// Values lists every key with its value and where that came from. None of them
// is a secret.
func (c *Config) Values() []Value {
	var out []Value
	put := func(k Key, name string, rv reflect.Value) {
		v := Value{Key: name, Value: fmt.Sprint(rv.FieldByIndex(k.index).Interface()), Source: c.source[name], Reload: k.Reload}
		if v.Source == "" {
			v.Source = "default"
		}
		if v.Source == "file" {
			v.Line = c.lines[name]
		}
		out = append(out, v)
	}
	keys := Keys()
	for _, k := range keys {
		if !k.each {
			put(k, k.Name, reflect.ValueOf(c).Elem())
		}
	}
	sections, _ := sections()
	for _, section := range sections {
		if named[section] == nil {
			continue
		}
		all, pattern := c.tables(section), section+"."+ownName
		for _, name := range slices.SortedFunc(slices.Values(all.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			for _, k := range keys {
				if k.section == pattern {
					put(k, section+"."+name.String()+"."+leaf(k.Name), all.MapIndex(name))
				}
			}
		}
	}
	return out
}

// Diff compares two configurations: the keys that differ and that a reload
// applies, and those that need a restart.
func (c *Config) Diff(next *Config) (reload, restart []string) {
	now := make(map[string]Value)
	for _, v := range c.Values() {
		now[v.Key] = v
	}
	for _, v := range next.Values() {
		old, had := now[v.Key]
		delete(now, v.Key)
		switch {
		case had && old.Value == v.Value:
		case v.Reload:
			reload = append(reload, v.Key)
		default:
			restart = append(restart, v.Key)
		}
	}
	restart = append(restart, slices.Collect(maps.Keys(now))...)
	slices.Sort(restart)
	return reload, restart
}

// WithReload returns c with the keys that SIGHUP applies taken from next.
func (c *Config) WithReload(next *Config) *Config {
	merged := *c
	merged.source, merged.lines = maps.Clone(c.source), maps.Clone(c.lines)
	for _, k := range Keys() {
		if !k.Reload || k.each {
			continue
		}
		reflect.ValueOf(&merged).Elem().FieldByIndex(k.index).Set(reflect.ValueOf(next).Elem().FieldByIndex(k.index))
		delete(merged.source, k.Name)
		delete(merged.lines, k.Name)
		if s := next.source[k.Name]; s != "" {
			merged.source[k.Name], merged.lines[k.Name] = s, next.lines[k.Name]
		}
	}
	return &merged
}
