// Package customresources serves CustomResourceDefinitions and the kinds that they define, with the
// parts of k8s.io/apiextensions-apiserver.
//
// A definition may be large and is usually idle, and a cluster may have hundreds. What one costs in
// memory depends on its use:
//
//   - Always: its metadata, names, versions and conditions, without the schemas, and one watch of the
//     metadata of its objects, which the garbage collector and quotas need. It decodes no schema.
//   - While it serves requests: the schemas, validators and watch caches, which are created by the
//     first request. They are dropped after idleTimeout without one. An open watch is a request.
//   - After a request for OpenAPI documents: the document, until its TTL expires.
//
// So the library's own server type is not used: it keeps a decoded copy of all definitions and builds
// their documents in advance.
package customresources
