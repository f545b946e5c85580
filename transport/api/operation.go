package api

import (
	"reflect"
	"time"

	"palyra/kernel/hub"
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
)

// The permissions that are none of authz/access.
const (
	Public        = "public"        // anybody may ask, without a credential
	Authenticated = "authenticated" // whoever has a credential may ask; the hub says what they are told
)

// Operation is one thing that can be asked over HTTP, as data. The server
// routes by it, checks the permission that it names and generates the OpenAPI
// document from it.
type Operation struct {
	ID         string // lowerCamelCase, unique: "startRun"
	Tag        string // group in the document
	Method     string
	Path       string // beneath Prefix, with {name} parameters
	Root       bool   // Path is not beneath Prefix
	Permission string // Public, or one that the caller's scopes must hold
	Summary    string // one line
	Doc        string // more, where the summary does not say all

	Query    []Param
	Request  reflect.Type // of the JSON body; nil: no body is allowed
	Status   int          // of success
	Also     []int        // further successes with the same body
	Response reflect.Type // of the JSON answer; nil: see Media
	Media    []string     // of the answer, where it is not JSON or not only

	Idempotent bool // needs the header Idempotency-Key
	Key        bool // may have one
	ETag       bool // the answer has one; a GET honours If-None-Match
	IfMatch    bool // needs the header If-Match with the ETag of what is changed
	Creates    bool // instead may have If-None-Match: *, for what is not there yet
	Prefer     bool // honours "Prefer: respond-async" with 202
}

// Full returns the path with its prefix.
func (o *Operation) Full() string {
	if o.Root {
		return o.Path
	}
	return Prefix + o.Path
}

// Param is a parameter in the query.
type Param struct {
	Name    string
	Doc     string
	Integer bool     // decimal, not negative
	Boolean bool     // "true" or "false"
	Enum    []string // allowed values
	Many    bool     // may be repeated
}

// Type returns the type T, for the tables.
func Type[T any]() reflect.Type { return reflect.TypeFor[T]() }

// RespondAsync is the value of the header Prefer for an answer that does not wait.
const RespondAsync = "respond-async"

// Headers of our own.
const (
	HeaderMediaType = "Palyra-Media-Type" // of an artifact, as its tool named it; it is served as bytes
	HeaderCreated   = "Palyra-Created"    // of an artifact, RFC 3339
	TrailerBackup   = "Palyra-Backup"     // hub.BackupInfo as JSON, after the backup
)

// PolicyTestRequest names the set to test.
type PolicyTestRequest struct {
	Candidate *hub.PolicySet `json:"candidate,omitempty"` // without it the set in force
}

// MemberChange is what a member shall be.
type MemberChange struct {
	Role string `json:"role"` // "owner", "admin" or "operator"
}

// RotationRequest is hub.Rotation without the version, which If-Match has.
type RotationRequest struct {
	TTL     time.Duration `json:"ttl_ns,omitempty"`
	Overlap time.Duration `json:"overlap_ns,omitempty"`
}
