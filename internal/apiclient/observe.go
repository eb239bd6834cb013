package apiclient

import (
	"net/http"
	"time"
)

// Request is a request to the server that has received its response header, or that has failed.
type Request struct {
	Method, Host string
	Code         int // status code; 0: no response
	Watch        bool
	Duration     time.Duration // until the response header
}

// observed returns a transport that reports each request; next, if report is nil.
func observed(next http.RoundTripper, report func(Request)) http.RoundTripper {
	if report == nil {
		return next
	}
	return observer{next, report}
}

type observer struct {
	next   http.RoundTripper
	report func(Request)
}

func (o observer) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	resp, err := o.next.RoundTrip(r)
	q := r.URL.Query().Get("watch")
	done := Request{
		Method: r.Method, Host: r.URL.Host, Watch: q == "true" || q == "1", Duration: time.Since(start),
	}
	if err == nil {
		done.Code = resp.StatusCode
	}
	o.report(done)
	return resp, err
}
