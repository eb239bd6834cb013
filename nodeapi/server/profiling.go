package server

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
)

// profiling serves the profiles of the agent at /debug/pprof/, like package net/http/pprof.
func (s *server) profiling(w http.ResponseWriter, r *http.Request) {
	switch r.PathValue("profile") {
	case "cmdline":
		pprof.Cmdline(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}

// maxVerbosity is the highest log verbosity, as for the flag --v.
const maxVerbosity = 10

// verbosity changes the log verbosity of the agent until it restarts.
func (s *server) verbosity(w http.ResponseWriter, r *http.Request) {
	text, err := readText(r)
	if err != nil {
		writeError(w, err)
		return
	}
	level, err := strconv.Atoi(text)
	if err != nil || level < 0 || level > maxVerbosity {
		http.Error(w, fmt.Sprintf("failed set klog.logging.verbosity %s: must be a number from 0 to %d",
			text, maxVerbosity), http.StatusBadRequest)
		return
	}
	s.h.SetVerbosity(level)
	s.Log.Info("log verbosity changed", "verbosity", level)
	_, _ = fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d", level)
}

// disabled answers a request to an endpoint that the configuration disables.
func disabled(what string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, what+" endpoint is disabled.", http.StatusMethodNotAllowed)
	}
}
