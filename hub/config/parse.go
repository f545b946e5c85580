package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"
)

// parser fills a Config and collects problems. The TOML library only parses the syntax.
// Names, types and bounds are checked here, because the library would take "Profile" for
// "profile" and leave unknown keys alone.
type parser struct {
	c        *Config
	problems []Problem
}

func (p *parser) add(key, fix, format string, args ...any) {
	p.problems = append(p.problems, Problem{Key: key, Line: p.c.line(key), Text: fmt.Sprintf(format, args...), Fix: fix})
}

// line returns the line of a key, or of the nearest table around it.
func (c *Config) line(key string) int {
	for key != "" {
		if n := c.lines[key]; n > 0 {
			return n
		}
		key, _, _ = cutLast(key)
	}
	return 0
}

func cutLast(key string) (before, last string, found bool) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", key, false
	}
	return key[:i], key[i+1:], true
}

func (p *parser) defaults() {
	for _, k := range Keys() {
		if k.each {
			continue
		}
		if err := set(reflect.ValueOf(p.c).Elem().FieldByIndex(k.index), k, k.Default); err != nil {
			panic("config: internal error: default of " + k.Name + " " + err.Error())
		}
	}
}

func (p *parser) file(src []byte) {
	if i := slices.IndexFunc(secretLike, func(r *regexp.Regexp) bool { return r.Match(src) }); i >= 0 {
		p.add("", "keep secrets in files of their own, name their path here",
			"holds what looks like a private key or a token")
		return
	}
	if line := tooDeep(string(src)); line > 0 {
		p.problems = append(p.problems, Problem{Line: line, Text: fmt.Sprintf("is nested deeper than %d", maxNesting)})
		return
	}
	var doc map[string]any
	if _, err := toml.Decode(string(src), &doc); err != nil {
		p.syntax(err)
		return
	}
	p.c.lines = lines(string(src))
	byName := make(map[string]Key)
	for _, k := range Keys() {
		byName[k.Name] = k
	}
	p.table("", doc, byName)
	slices.SortStableFunc(p.problems, func(a, b Problem) int { return a.Line - b.Line })
}

// secretLike finds accidents: a key or token pasted into the file.
var secretLike = []*regexp.Regexp{
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`\bpalyra_[A-Za-z0-9]+_[A-Za-z0-9]{16,}_[A-Za-z0-9]+\b`),
	regexp.MustCompile(`AGE-SECRET-KEY-1[0-9A-Z]{10}`),
	regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{20}`), // of OpenAI, Anthropic and others
}

// quotedLong matches the library's quotes from the file, which may hold a secret that was
// written in the wrong place.
var quotedLong = regexp.MustCompile(`"[^"]{9,}"|'[^']{9,}'`)

func (p *parser) syntax(err error) {
	pr := Problem{Text: "is not TOML"}
	if pe, ok := errors.AsType[toml.ParseError](err); ok {
		pr.Line = pe.Position.Line
		pr.Text = strings.Map(printable, quotedLong.ReplaceAllString(pe.Message, `"…"`))
		if pr.Text == "" {
			pr.Text = "is not TOML"
		}
	}
	p.problems = append(p.problems, pr)
}

func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return -1
	}
	return r
}

// table takes the keys of one table, in order of name.
func (p *parser) table(prefix string, doc map[string]any, byName map[string]Key) {
	for _, part := range slices.Sorted(maps.Keys(doc)) {
		name := part
		if prefix != "" {
			name = prefix + "." + part
		}
		v := doc[part]
		sub, isTable := v.(map[string]any)
		known := isSection(name)
		switch {
		case named[prefix] != nil && isTable:
			p.named(prefix, part, sub, byName)
		case known && isTable:
			p.table(name, sub, byName)
		case known:
			p.add(name, fmt.Sprintf("write [%s] on a line of its own", name), "is a table, not %s", describe(v))
		default:
			k, ok := byName[name]
			if !ok || k.each {
				p.unknown(name, prefix, part, byName)
				continue
			}
			p.value(reflect.ValueOf(p.c).Elem().FieldByIndex(k.index), k, name, v)
		}
	}
}

var ownNames = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// named takes a table with a name of the operator's.
func (p *parser) named(section, part string, doc map[string]any, byName map[string]Key) {
	if !ownNames.MatchString(part) {
		p.add(section, "", "%q is no name for a %s: 1 to 32 of a-z, 0-9 and -", clip(part), strings.TrimSuffix(section, "s"))
		return
	}
	name, pattern, all := section+"."+part, section+"."+ownName, p.c.tables(section)
	rv := reflect.New(all.Type().Elem()).Elem()
	for _, k := range byName {
		if k.section == pattern && k.Default != "" {
			if err := set(rv.FieldByIndex(k.index), k, k.Default); err != nil {
				panic("config: internal error: default of " + k.Name + " " + err.Error())
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		k, ok := byName[pattern+"."+key]
		if !ok {
			p.unknown(name+"."+key, pattern, key, byName)
			continue
		}
		p.value(rv.FieldByIndex(k.index), k, name+"."+key, doc[key])
	}
	if all.IsNil() {
		all.Set(reflect.MakeMap(all.Type()))
	}
	all.SetMapIndex(reflect.ValueOf(part), rv)
}

func isSection(name string) bool {
	names, _ := sections()
	return slices.Contains(names, name)
}

// unknown reports a key that does not exist, with the nearest that does.
func (p *parser) unknown(name, section, part string, byName map[string]Key) {
	var here, all []string
	for n, k := range byName {
		if k.section == section {
			here = append(here, leaf(n))
		}
		all = append(all, n)
	}
	if section == "" {
		names, _ := sections()
		here = append(here, names...)
	}
	slices.Sort(here)
	slices.Sort(all)
	fix := ""
	if n := nearest(part, here); n != "" {
		fix = fmt.Sprintf("did you mean %s?", n)
	} else if i := slices.IndexFunc(all, func(n string) bool { return leaf(n) == part }); i >= 0 {
		fix = fmt.Sprintf("did you mean %s?", all[i])
	}
	text := "there is no such key"
	if fix != "" {
		text += "; " + strings.TrimSuffix(fix, "?")
	}
	for _, word := range []string{"password", "secret", "token", "passphrase", "api_key"} {
		if strings.Contains(strings.ToLower(part), word) && fix == "" {
			fix = "secrets do not belong here; see docs/OPERATIONS.md"
		}
	}
	p.problems = append(p.problems, Problem{Key: clip(name), Line: p.c.line(name), Text: text, Fix: fix})
}

// clip bounds and cleans a name that came from the file.
func clip(s string) string {
	s = strings.Map(printable, s)
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// value puts the file's value into the field of k.
func (p *parser) value(field reflect.Value, k Key, name string, v any) {
	var text string
	switch v := v.(type) {
	case []any:
		if k.Type != "list" {
			p.add(name, "", "is %s, not a list", article(k.Type))
			return
		}
		list := List{}
		for _, e := range v {
			s, ok := e.(string)
			if !ok || strings.IndexFunc(s, unicode.IsControl) >= 0 {
				p.add(name, valueFix(k), "is a list of texts without control characters")
				return
			}
			list = append(list, s)
		}
		field.Set(reflect.ValueOf(list))
		p.c.source[name] = "file"
		return
	case string:
		if k.Type == "list" {
			p.add(name, fmt.Sprintf("write %s = [\"…\"]", leaf(name)), "is a list, not text")
			return
		}
		if k.Type == "boolean" || k.Type == "integer" {
			p.add(name, fmt.Sprintf("write %s = %s", leaf(name), k.Default), "is %s, not text", article(k.Type))
			return
		}
		text = v
	case bool:
		if k.Type != "boolean" {
			p.add(name, "", "is %s, not a boolean", article(k.Type))
			return
		}
		text = strconv.FormatBool(v)
	case int64:
		if k.Type != "integer" && k.Type != "size" {
			p.add(name, "write it in quotes", "is %s, not a number", article(k.Type))
			return
		}
		text = strconv.FormatInt(v, 10)
	default:
		p.add(name, "", "is %s, not %s", article(k.Type), describe(v))
		return
	}
	if err := set(field, k, text); err != nil {
		p.add(name, valueFix(k), "%v", err)
		return
	}
	p.c.source[name] = "file"
}

// valueFix returns the hint for a value that a key doesn't take.
func valueFix(k Key) string { return "palyra config explain " + k.Name + " says which values it takes" }

func article(kind string) string {
	if strings.ContainsRune("aeiou", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

func describe(v any) string {
	switch v.(type) {
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "a list"
	case float64:
		return "a number with a fraction"
	case string:
		return "text"
	case bool:
		return "a boolean"
	case int64:
		return "a number"
	}
	return "a date or time"
}

// set parses text as the type of k, checks its bounds and stores it.
func set(field reflect.Value, k Key, text string) error {
	switch k.Type {
	case "string":
		if strings.IndexFunc(text, unicode.IsControl) >= 0 {
			return errors.New("has a control character")
		}
		for _, a := range k.Aka {
			if other, value, _ := strings.Cut(a, "="); text == other {
				text = value
			}
		}
		if len(k.OneOf) > 0 && !slices.Contains(k.OneOf, text) {
			return fmt.Errorf("is none of %s", strings.Join(k.OneOf, ", "))
		}
		field.SetString(text)
		return nil
	case "boolean":
		if text != "true" && text != "false" {
			return errors.New("is neither true nor false")
		}
		field.SetBool(text == "true")
		return nil
	case "mode":
		m, err := parseMode(text)
		field.SetUint(uint64(m))
		return err
	}
	n, err := number(k.Type, text)
	if err != nil {
		return err
	}
	for _, b := range []struct {
		bound string
		sign  int64
		word  string
	}{{k.Min, 1, "less"}, {k.Max, -1, "more"}} {
		if b.bound == "" {
			continue
		}
		limit, err := number(k.Type, b.bound)
		if err != nil {
			panic("config: internal error: bound of " + k.Name + " " + err.Error())
		}
		if b.sign*n < b.sign*limit {
			return fmt.Errorf("is %s than %s", b.word, b.bound)
		}
	}
	field.SetInt(n)
	return nil
}

func number(kind, text string) (int64, error) {
	switch kind {
	case "duration":
		d, err := parseDuration(text)
		return int64(d), err
	case "size":
		s, err := parseSize(text)
		return int64(s), err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errors.New("is no number")
	}
	return n, nil
}
