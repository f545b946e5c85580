package hub

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"palyra/internal/fault"
)

// Prefix stands before the path of every Operation with Path "/…" unless Root is set.
const Prefix = "/api/v1"

// Media types of answers.
const (
	MediaJSON   = "application/json"
	MediaNDJSON = "application/x-ndjson"
	MediaSSE    = "text/event-stream"
	MediaText   = "text/plain; charset=utf-8"
	MediaBytes  = "application/octet-stream"
	MediaBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// Headers of our own.
const (
	HeaderMediaType = "Palyra-Media-Type" // of an artifact, by its tool; served as bytes
	HeaderCreated   = "Palyra-Created"    // of an artifact, RFC 3339
	TrailerBackup   = "Palyra-Backup"     // BackupInfo as JSON, after the backup
)

// The permissions that palyra/authz/access doesn't have.
const (
	Public        = "public"        // every caller may ask, without a credential
	Authenticated = "authenticated" // with a credential; the hub decides what to tell
)

// Operation is one operation of the hub as data: all but the function that does it. Its
// input and output say the rest; see palyra/transport/api for their tags.
type Operation struct {
	ID         string // lowerCamelCase, unique: "startRun"
	Tag        string // group in the document
	Method     string // of HTTP
	Path       string // beneath Prefix, with {name} parameters
	Root       bool   // Path is not beneath Prefix
	Permission string // Public, Authenticated, or one of palyra/authz/access
	Summary    string // one line
	Doc        string // more, where the summary does not say all

	In, Out reflect.Type // [None] for nothing

	Status int      // of success
	Also   []int    // further successes with the same body
	Media  []string // of the answer, where it is not JSON or not only

	Idempotent bool  // needs the header Idempotency-Key
	Key        bool  // may have one
	Creates    bool  // may have If-None-Match: * instead of If-Match, for what is not there yet
	Prefer     bool  // honours "Prefer: respond-async" with 202
	Body       int64 // the most bytes of a body, where limits.body is less; bounded by the principal's share of all bodies
	Brake      bool  // the emergency stop: it has a rate limit of its own
	Ends       bool  // ends work or a wait, so a lack of memory doesn't refuse it

	Effect Effect // which emergencies refuse it
}

// None is the input or output of an operation that has none.
type None struct{}

// Full returns the path with its prefix.
func (o *Operation) Full() string {
	if o.Root {
		return o.Path
	}
	return Prefix + o.Path
}

// Verb returns the ID in words, for errors: "start run".
func (o *Operation) Verb() string {
	var b strings.Builder
	for _, r := range o.ID {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte(' ')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Op is an operation with the types of its input and output.
type Op[In, Out any] struct{ *Operation }

// define makes an operation. The name is its tag and ID, the route its method and
// path; more has what else there is to say.
func define[In, Out any](name, route, permission, summary string, more ...Operation) Op[In, Out] {
	var o Operation
	for _, o = range more {
	}
	o.Tag, o.ID, _ = strings.Cut(name, ".")
	o.Method, o.Path, _ = strings.Cut(route, " ")
	o.Permission, o.Summary, o.In, o.Out = permission, summary, reflect.TypeFor[In](), reflect.TypeFor[Out]()
	if o.Status == 0 {
		o.Status = 200
	}
	if o.Method == "GET" {
		o.Effect = Keeps
	}
	return Op[In, Out]{&o}
}

// Do has h do the operation for c.
func (o Op[In, Out]) Do(ctx context.Context, h Hub, c Caller, in In) (Out, error) {
	v, err := h.Do(ctx, c, o.Operation, in)
	out, ok := v.(Out)
	if !ok && err == nil {
		err = fault.New(fault.Internal, "internal", o.Verb(), fmt.Errorf("the hub gave a %T", v))
	}
	return out, err
}

// By names the function that does the operation.
func (o Op[In, Out]) By(do func(context.Context, Caller, In) (Out, error)) Entry {
	return Entry{o.Operation, func(ctx context.Context, c Caller, in any) (any, error) {
		v, ok := in.(In)
		if !ok {
			return nil, fault.New(fault.Internal, "internal", o.Verb(), fmt.Errorf("a %T came in", in))
		}
		return do(ctx, c, v)
	}}
}

// Entry is an operation and the function that does it.
type Entry struct {
	Operation *Operation
	do        func(ctx context.Context, c Caller, in any) (any, error)
}

// Table is a Hub of functions.
type Table map[*Operation]Entry

// NewTable returns a Table of entries; of several for one operation the last counts.
func NewTable(entries ...Entry) Table {
	t := make(Table, len(entries))
	for _, e := range entries {
		t[e.Operation] = e
	}
	return t
}

var _ Hub = Table(nil)

// Do implements Hub.
func (t Table) Do(ctx context.Context, c Caller, op *Operation, in any) (any, error) {
	e, ok := t[op]
	if !ok {
		return nil, fault.New(fault.Unsupported, "no_operation", op.Verb(), nil)
	}
	return e.do(ctx, c, in)
}
