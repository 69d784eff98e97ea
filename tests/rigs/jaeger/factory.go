// Package factory stands in for Jaeger's choice between all its storages, which would bring the clients of five databases.
package factory

import "github.com/jaegertracing/jaeger/internal/storage/v1/api/spanstore"

// ArchiveStorage is all that the query service wants of it.
type ArchiveStorage struct {
	Reader spanstore.Reader
	Writer spanstore.Writer
}
