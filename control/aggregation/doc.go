// Package aggregation serves APIServices and forwards the requests of their group versions to extension
// API servers, with the parts of k8s.io/kube-aggregator.
//
// An APIService with a Service overrides the resources that the server has itself in that group version,
// until the APIService is deleted. Without such an APIService the package has one informer and forwards
// every request to the next handler:
//
//   - The controller of remote availability, and with it the informers of Services and EndpointSlices,
//     starts with the first APIService that has a Service.
//   - OpenAPI documents of extension API servers are requested when a client requests them. Only their
//     hashes are kept.
//
// So the library's own server type is not used: it keeps all documents, and it is a second API server in
// front of the first one.
package aggregation
