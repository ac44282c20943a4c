CREATE TABLE entities ( id TEXT PRIMARY KEY, name TEXT NOT NULL, type TEXT DEFAULT 'unknown', properties TEXT DEFAULT '{}', created_at TEXT DEFAULT CURRENT_TIMESTAMP );
INSERT INTO "entities" VALUES ('ann', 'Ann', 'unknown', '{}', '2026-11-24 16:26:31');
INSERT INTO "entities" VALUES ('shop', 'shop', 'unknown', '{}', '2026-11-24 16:26:31');
CREATE TABLE triples ( id TEXT PRIMARY KEY, subject TEXT NOT NULL, predicate TEXT NOT NULL, object TEXT NOT NULL, valid_from TEXT, valid_to TEXT, confidence REAL DEFAULT 1.0, source_closet TEXT, source_file TEXT, source_drawer_id TEXT, adapter_name TEXT, extracted_at TEXT DEFAULT CURRENT_TIMESTAMP, FOREIGN KEY (subject) REFERENCES entities(id), FOREIGN KEY (object) REFERENCES entities(id) );
INSERT INTO "triples" VALUES ('t_ann_maintains_shop_5ac5be56f7cc', 'ann', 'maintains', 'shop', '2026-03-01', NULL, 1.0, NULL, NULL, NULL, NULL, '2026-11-24 16:26:31');
