// Package audit writes the audit log of the control server: it loads the policy, which selects the
// requests and how much of them is recorded, and opens the backends, which write the events to a file
// and send them to a webhook.
//
// The events, the policies and the webhook backend are those of k8s.io/apiserver, and the options have
// the names of kube-apiserver. Different from kube-apiserver, there is a default policy, a log file with
// a limited size is the default, and a policy file with an unknown field is an error.
package audit
