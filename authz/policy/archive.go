package policy

import (
	"errors"
	"slices"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Texts returns the policy files and lists of hosts of the set by name. The digest covers these and
// the schema.
func (s *Set) Texts() map[string]string {
	texts := make(map[string]string, len(s.texts))
	for _, f := range s.texts {
		texts[f.name] = string(f.data)
	}
	return texts
}

// Schema returns the schema that the set was checked against: the program's, or that of the
// program that the set is restored from.
func (s *Set) Schema() string { return s.schema }

// Restore makes a set from its Texts and Schema, to explain its decisions; schema "" is the
// program's. It runs no policy tests and none of Load's checks: the set passed them before it
// decided. Texts and schema that aren't those of want are fault.Integrity "store_corrupt". The
// set sees the attributes that its schema has and this program fills.
func Restore(texts map[string]string, schema string, want canon.Digest) (*Set, error) {
	const op = "restore policy set"
	var files []file
	for name, text := range texts {
		kind, ignore, err := kindOf(name)
		if err != nil || ignore || kind != kindPolicy && kind != kindHosts {
			return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("it holds what is no policy file"))
		}
		files = append(files, file{name, kind, []byte(text)})
	}
	sortFiles(files)
	if schema == "" {
		schema = schemaText()
	}
	if digestOf(schema, files) != want {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("its digest is another"))
	}
	s, err := compileFor(schema, files)
	if err != nil {
		return nil, err
	}
	if schema != schemaText() {
		r, err := resolve(schema)
		if err != nil {
			return nil, fault.New(fault.Integrity, "store_corrupt", op, err)
		}
		s.unknown, s.lost = r.differs()
		var unknown attr
		for _, a := range s.unknown {
			unknown = unknown.or(a)
		}
		for _, x := range s.rules {
			if x.reads.meets(unknown) { // it looks for what isn't there, and needs the record around it
				x.reads = x.reads.or(attrAll.without(attrApproved.or(attrInterpreterPermitted)))
				s.want = s.want.or(x.reads)
			}
		}
	}
	return s, nil
}

// byContext has a value for each context type, in the order of [contexts].
type byContext [len(contextNames)]attr

// of returns the value for the context of an action.
func (b *byContext) of(action string) attr {
	has := contextOf(action)
	return b[slices.Index(attrsIn[:], has)]
}

// attrsIn are the attributes of each context type.
var attrsIn = byContext{attrOrigin, attrCall, attrUse, attrAnswer}

// old is a schema of another version of this program.
type old struct{ *resolved.Schema }

// differs compares the schema's contexts with this program's. unknown are the attributes that it
// doesn't have, lost the path of one that this program doesn't fill; "" if it fills all.
func (o old) differs() (unknown byContext, lost string) {
	for i, action := range [...]string{ToolList, ToolExecute, PermissionUse, ApprovalResolve} {
		unknown[i] = attrsIn[i]
		a, ok := o.Actions[cedar.EntityUID{Type: actionType, ID: cedar.String(action)}]
		if !ok || a.AppliesTo == nil {
			continue
		}
		for _, path := range paths(a.AppliesTo.Context, "") {
			if row := attrNames[path].and(attrsIn[i]); !row.isEmpty() {
				unknown[i] = unknown[i].without(row)
			} else {
				lost = path
			}
		}
	}
	return unknown, lost
}

// paths returns the attributes of a record, those of records in it in their place.
func paths(r resolved.RecordType, in string) (out []string) {
	for name, a := range r {
		if inner, ok := a.Type.(resolved.RecordType); ok {
			out = append(out, paths(inner, in+string(name)+".")...)
		} else {
			out = append(out, in+string(name))
		}
	}
	return out
}
