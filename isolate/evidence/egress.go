package evidence

import (
	"strconv"
	"strings"

	"palyra/internal/canon"
)

// The most that one call's evidence of egress lists.
const (
	MaxConnections = 256
	MaxDenied      = 64
	MaxRequests    = 256
	MaxLeaks       = 16
	MaxKept        = 32
	MaxUses        = 16 // of one request
	MaxChecked     = 64
	MaxAddresses   = 32 // of one name
)

// Egress is what the call asked of the network and got, as palyra-egress counted it: every
// connection of the call went through it, unless the call was in the host's network (Checked).
type Egress struct {
	Basis Basis `json:"basis" basis:"reported"`
	// Queries is how many DNS queries the program sent.
	Queries int64 `json:"queries" unit:"count" show:"%s queries"`
	// Connections are the first 256 that were made or tried, in the order of their beginning, and last
	// one that palyra-egress made before the program asked, if the program never did.
	Connections []Connection `json:"connections,omitempty" show:"%d connections listed"`
	// More is how many connections aren't listed.
	More int64 `json:"more_connections,omitempty" unit:"count"`
	// Sent is how much the program sent to all hosts.
	Sent int64 `json:"sent_bytes" unit:"bytes" show:"%s sent"`
	// Received is how much the program got from all hosts.
	Received int64 `json:"received_bytes" unit:"bytes" show:"%s received"`
	// Denied are the first 64 names and addresses that the program asked for and didn't get, in the
	// order of the first asking.
	Denied []Denial `json:"denied,omitempty" show:"denied: %s"`
	// MoreDenied is how often the program asked for others that it didn't get.
	MoreDenied int64 `json:"more_denied,omitempty" unit:"count"`
	// Requests are the first 256 requests to hosts that were inspected, in the order of their
	// beginning, those that were refused among them.
	Requests []Request `json:"requests,omitempty" show:"%d requests listed"`
	// MoreRequests is how many requests aren't listed.
	MoreRequests int64 `json:"more_requests,omitempty" unit:"count"`
	// Leaks are the places other than that of its use in which the placeholder of a secret was seen.
	// The first ends the call.
	Leaks []Leak `json:"leaks,omitempty" show:"leaked: %s"`
	// Kept are the first 32 files, by path, that the call left in its workspace, or in the layer over
	// it, with the placeholder of a secret in what they say, where the secret's use lets them. It's
	// worth nothing any more.
	Kept []Kept `json:"kept,omitempty" show:"kept in files: %s"`
	// MoreKept is how many of these files aren't listed.
	MoreKept int64 `json:"more_kept,omitempty" unit:"count"`
	// Unread is how many files and folders that the call may have changed weren't read to their end
	// for placeholders.
	Unread int64 `json:"unread_files,omitempty" unit:"count"`
	// Checked are the names and addresses that were looked up and judged before a call in the host's
	// network began, sorted. What the program asked of the network then isn't known.
	Checked []Checked `json:"checked,omitempty" show:"checked before the start only: %s"`
}

// Checked is a host that was looked up before the call.
type Checked struct {
	// Host is the name, or the address if a rule names that.
	Host string `json:"host"`
	// Addresses are those that it led to, none for an address.
	Addresses []string `json:"addresses,omitempty"`
}

// String returns the host and its addresses.
func (c Checked) String() string {
	if len(c.Addresses) == 0 {
		return c.Host
	}
	return c.Host + " at " + strings.Join(c.Addresses, " ")
}

// How a connection ended.
const (
	ConnClosed      = "closed"      // both sides had said all
	ConnReset       = "reset"       // the program's side broke it off
	ConnResetByPeer = "reset_peer"  // the host's side did
	ConnRefused     = "refused"     // by each of the name's addresses
	ConnUnreachable = "unreachable" // none of the addresses could be reached, or a mix of reasons
	ConnTimedOut    = "timeout"     // no address answered in time
	ConnIdle        = "idle"        // nothing passed for too long
	ConnLimit       = "limit"       // it was cut off for a limit, which a denial names
	ConnEnded       = "ended"       // it was open when the call ended
)

// Connection is one connection of the program's.
type Connection struct {
	// Host is the name that the program asked for, or the address if it asked for that.
	Host string `json:"host"`
	// Port is the port that it asked for.
	Port uint32 `json:"port" unit:"port"`
	// Address is the address that was connected, absent if none was.
	Address string `json:"address,omitempty"`
	// Outcome is "closed", "reset" by the program, "reset_peer", "refused", "unreachable", "timeout"
	// before it was connected, "idle" or "limit" if it was cut off for that, or "ended" with the call.
	Outcome string `json:"outcome"`
	// Sent is how much the program sent.
	Sent int64 `json:"sent_bytes" unit:"bytes"`
	// Received is how much it got.
	Received int64 `json:"received_bytes" unit:"bytes"`
	// DurationNS is the time from the program's connecting to the end.
	DurationNS int64 `json:"duration_ns" unit:"ns"`
	// ServerName is the name in the program's TLS greeting, absent without one.
	ServerName string `json:"server_name,omitempty"`
	// TLS is the version that the host chose, such as "TLS 1.3", absent if it wasn't seen.
	TLS string `json:"tls,omitempty"`
	// Key is the digest of the public key in the certificate that the host showed to palyra-egress,
	// absent if the connection wasn't inspected.
	Key canon.Digest `json:"key,omitzero"`
}

// Request is one request to a host that was inspected.
type Request struct {
	// Host is the host's name.
	Host string `json:"host"`
	// Port is the host's port.
	Port uint32 `json:"port" unit:"port"`
	// Method is the request's method.
	Method string `json:"method"`
	// Path is the request's path without its query, of at most 200 bytes.
	Path string `json:"path"`
	// Status is the status that the program got, 0 if it got none.
	Status uint32 `json:"status" unit:"count"`
	// Refused is whether palyra-egress answered, and the host never saw the request.
	Refused bool `json:"refused,omitempty"`
	// Sent is how much of a body the program sent.
	Sent int64 `json:"sent_bytes" unit:"bytes"`
	// Received is how much of a body it got.
	Received int64 `json:"received_bytes" unit:"bytes"`
	// Uses are the names of the secrets whose values were put in.
	Uses []string `json:"uses,omitempty"`
}

// Where a placeholder leaked.
const (
	LeakHost   = "host"   // in the name that a request names as its host
	LeakMethod = "method" // in a request's method
	LeakPath   = "path"   // in its path
	LeakQuery  = "query"  // in its query
	LeakHeader = "header" // in a header or a trailer
	LeakBody   = "body"   // in its body
	LeakDNS    = "dns"    // in a name that was looked up
	LeakClear  = "clear"  // in bytes of a connection that passes
	LeakProxy  = "proxy"  // in what a proxy was asked
	LeakTLS    = "tls"    // in a greeting of TLS to an inspected host

	// Seen by palyra.
	LeakStdout   = "stdout"   // in the program's output
	LeakStderr   = "stderr"   //
	LeakTerminal = "terminal" //
	LeakPlanted  = "planted"  // in the name of a file that it left in its workspace
	LeakFile     = "file"     // in what such a file says
)

// Leak is one place in which the placeholder of a secret was seen.
type Leak struct {
	// Name is the variable of the environment that has the placeholder.
	Name string `json:"name"`
	// Host is the host to which it would have gone, absent if there was none.
	Host string `json:"host,omitempty"`
	// Port is the host's port, 0 if there was none.
	Port uint32 `json:"port,omitempty" unit:"port"`
	// Where is "host", "method", "path", "query", "header" or "body" of a request, "dns" for a name
	// that was looked up, "clear" for bytes of a connection that passes, "proxy" for what a proxy was
	// asked, or "tls" for a greeting; or, as palyra saw it, "stdout", "stderr" or "terminal" for
	// output, "planted" for the name of a file that the program left in its workspace, or in the layer
	// over it, or "file" for what such a file says.
	Where string `json:"where"`
	// Path is the path of such a file, as a receipt spells what is planted; absent otherwise.
	Path string `json:"path,omitempty"`
}

// String returns the name, where it was, and the host or file.
func (l Leak) String() string {
	s := l.Name + " in " + l.Where
	switch {
	case l.Path != "":
		return s + " " + l.Path
	case l.Host == "":
		return s
	}
	return s + " of " + hostPort(l.Host, l.Port)
}

// Kept is a file that has the placeholder of a secret in what it says, and may.
type Kept struct {
	// Name is the variable of the environment that had the placeholder.
	Name string `json:"name"`
	// Path is the file's, below the workspace, as a receipt spells what is planted.
	Path string `json:"path"`
}

// String returns the name and the file.
func (k Kept) String() string { return k.Name + " in " + k.Path }

// Why something was denied.
const (
	DenyNotListed = "not_listed"    // no rule has it
	DenyForbidden = "forbidden"     // it resolves into a range that no rule names
	DenyMalformed = "malformed"     // it's no name, address or request as they are taken
	DenyType      = "record_type"   // a DNS query for other than addresses
	DenyLimit     = "limit"         // beyond a limit of the call or a rule, which Limit names
	DenyInUse     = "in_use"        // the program itself listens where the name would be
	DenyOverload  = "overload"      // palyra-egress has no room for it
	DenyProxy     = "proxy_request" // a proxy request other than CONNECT to a host
	DenyNoName    = "no_name"       // a rule has it, and no host of that name is known
	DenyNoAnswer  = "no_answer"     // a rule has it, and the host's resolver didn't answer
	DenyRequest   = "request"       // a request to an inspected host that no rule has, or that isn't taken
	DenyNotTLS    = "not_tls"       // an inspected host was spoken to without TLS, or for another name
	DenyPin       = "pin"           // an inspected host has another key than those that rules pin
)

// The limits of a call that a denial can be for. A rule's bound is named by its word: "rate:10/s".
const (
	LimitOpen        = "open"        // connections at once
	LimitConnections = "connections" // in all
	LimitRate        = "rate"        // of connections
	LimitSent        = "sent"        // bytes, in all
	LimitReceived    = "received"    //
	LimitNames       = "names"       // that are looked up
	LimitQueries     = "queries"     // of the DNS, in all
	LimitQueryRate   = "query_rate"  // of DNS queries
)

// Denial is something that the program asked for and didn't get.
type Denial struct {
	// Host is the name or address as it was asked for.
	Host string `json:"host"`
	// Port is the port, 0 if a name was only looked up.
	Port uint32 `json:"port,omitempty" unit:"port"`
	// Why is "not_listed", "forbidden" if it resolves into a range that no rule names, "malformed",
	// "record_type", "in_use" by the program's own listening socket, "limit" of the call, "overload"
	// of palyra-egress, "proxy_request", "no_name" if the name is allowed and has no address,
	// "no_answer" if the host's resolver didn't say, "request" if an inspected host was asked for what
	// no rule has, "not_tls" if it was spoken to without TLS or under another name, or "pin" if it has
	// another key than those that the rules pin.
	Why string `json:"why"`
	// Limit is which limit, if that is why: "open" connections at once, "connections" in all, their
	// "rate", bytes "sent" or "received", for which a connection was cut off, "names" looked up, DNS
	// "queries" in all or their "query_rate"; or a rule's bound, as it says that: "rate:10/s".
	Limit string `json:"limit,omitempty"`
	// Times is how often it was asked for.
	Times int64 `json:"times" unit:"count"`
}

// String returns the host, with its port if there is one, why, and which limit.
func (d Denial) String() string {
	why := d.Why
	if d.Limit != "" {
		why += " " + d.Limit
	}
	return hostPort(d.Host, d.Port) + " (" + why + ")"
}

func hostPort(host string, port uint32) string {
	if port == 0 {
		return host
	}
	if strings.Contains(host, ":") { // net.JoinHostPort would link net into palyra-cell
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(port))
}
