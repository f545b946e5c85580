package httpapi

import (
	"net/http"

	"palyra/hub"
	"palyra/transport/api"
)

// Further permissions, beside those of the operations.
const (
	permConfigRead  = "config.read"
	permJournalRead = "journal.read"
)

// route is an operation and what serves it.
type route struct {
	*hub.Operation
	in     *api.Input
	health bool // served also without authentication
	page   bool // for people; see pages
	// foreign: requests and errors are another API's; see foreign.
	foreign bool
	serve   func(*exchange) error
}

const (
	get  = http.MethodGet
	post = http.MethodPost
)

// special serves the operations whose answers aren't JSON documents, or that can be
// answered before they are done.
var special = map[*hub.Operation]func(*exchange) error{
	hub.Call.Operation:        makeCall,
	hub.ReadTape.Operation:    readTape,
	hub.ReadOutput.Operation:  readOutput,
	hub.GetArtifact.Operation: getArtifact,
	hub.Backup.Operation:      backup,
}

// table returns the one table of routes: there are no others but those of pages. Beside the hub's
// operations it has those of the server itself.
func table() []route {
	var all []route
	add := func(o *hub.Operation, health bool, serve func(*exchange) error) {
		all = append(all, route{Operation: o, in: api.InputOf(o), health: health, serve: serve})
	}
	for _, o := range hub.Operations() {
		serve := special[o]
		if serve == nil {
			serve = operate
		}
		add(o, false, serve)
	}
	for _, o := range mcpOperations {
		add(o, false, speak)
	}
	add(&hub.Operation{ID: "getOpenAPI", Tag: "daemon", Method: get, Path: "/openapi.json", Permission: hub.Authenticated, Status: http.StatusOK,
		Summary: "Get this document", Media: []string{hub.MediaJSON}}, false, getOpenAPI)
	add(&hub.Operation{ID: "livez", Tag: "health", Method: get, Path: "/livez", Root: true, Permission: hub.Public, Status: http.StatusOK,
		Summary: "Is the process alive", Media: []string{hub.MediaText}}, true, livez)
	add(&hub.Operation{ID: "readyz", Tag: "health", Method: get, Path: "/readyz", Root: true, Permission: hub.Public, Status: http.StatusOK,
		Summary: "Can calls be served", Doc: "503 with the class of what is wrong.", Media: []string{hub.MediaText}}, true, readyz)
	add(&hub.Operation{ID: "metrics", Tag: "health", Method: get, Path: "/metrics", Root: true, Permission: permConfigRead, Status: http.StatusOK,
		Summary: "Get metrics in the text format of Prometheus", Media: []string{mediaPrometheus}}, true, getMetrics)
	return all
}
