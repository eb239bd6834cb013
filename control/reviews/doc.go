// Package reviews is the REST storage of what is asked and not kept: a create is
// answered with what was sent and a status, and nothing is stored.
//
// It owns how such a question is served. It never knows an answer: control/authn
// says who somebody is, control/authz what he may do.
package reviews
